"""What touches the outside: the event store, settings, read models."""
