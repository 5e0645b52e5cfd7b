"""The whole server: real processes, real HTTP, real models."""
