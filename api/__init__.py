"""The ways in: HTTP and the command line."""
