"""The command line `inferlog`."""
