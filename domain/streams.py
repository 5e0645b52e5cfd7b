"""Names of the streams that events belong to."""

from __future__ import annotations

SERVER = "server"


def completion(command_id: str) -> str:
    """The stream of one chat completion, from its command to its end."""
    return f"completion/{command_id}"


def instance(instance_id: str) -> str:
    """The stream of one loaded model and its runners."""
    return f"instance/{instance_id}"


def node(node_id: str) -> str:
    """The stream of one node: its starts and the model folders it made."""
    return f"node/{node_id}"
