"""Kills, faults and load for longer than `make test` has time for: `make chaos`."""
