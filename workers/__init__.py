"""Consume tasks, run models, emit events."""
