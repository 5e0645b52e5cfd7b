"""The runner process, the only one that imports MLX."""
