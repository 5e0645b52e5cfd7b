"""What may be asked of inferlog. A command is decided once and then recorded.

The clock, ids and seeds were drawn by whoever built the command, so deciding it is
deterministic.
"""

from __future__ import annotations

import msgspec


class Struct(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A command: immutable, told apart from the others by its class name."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are drawn. All of it is recorded, so any request can be run again.

    Attributes:
        seed: 64-bit signed integer; the client's, or drawn at acceptance.
        temperature: 0 is greedy.
        top_p: probability mass kept, in (0, 1].
        max_tokens: tokens generated at most, at least 1.
    """

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which bits answer: SHA-256 digests in hex of the weights, tokenizer and template."""

    weights_digest: str
    tokenizer_digest: str
    template_digest: str


class Caller(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who asked, and over which request.

    Attributes:
        actor: the API key's id, `anonymous`, or `system` for what a node does by itself.
        request_id: the `x-request-id` of the HTTP exchange.
        client: address of the client, `host:port`, or empty.
        headers: SDK facts worth keeping (`user-agent`, `x-stainless-retry-count`, ...).
        idempotency_key: unique per actor; a repeat attaches to the first command.
    """

    actor: str
    request_id: str
    client: str = ""
    headers: dict[str, str] = {}
    idempotency_key: str | None = None


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """Generate an answer. The prompt is rendered and tokenized already."""

    command_id: str
    model_id: str
    model: ModelFacts
    created_at: int
    """Microseconds since the epoch."""
    prompt_text: str
    token_ids: tuple[int, ...]
    sampling: Sampling
    stop: tuple[str, ...] = ()
    stream: bool = False
    user: str | None = None
    metadata: dict[str, str] | None = None
    ignored: tuple[str, ...] = ()
    """Fields that a lenient server recorded but does not serve."""


class CreateInstance(Struct, frozen=True, kw_only=True):
    """Load a model: one runner a rank, all on one node for now."""

    command_id: str
    instance_id: str
    model_id: str
    source: str
    """What the model is made from: a folder, a `.gguf` file, a hub name or `default`."""
    node_id: str
    runner_ids: tuple[str, ...]
    """One for each rank, in rank order."""
    placed_by: str


class DeleteInstance(Struct, frozen=True, kw_only=True):
    """Unload a model. Its requests end with `instance_deleted`."""

    command_id: str
    instance_id: str


Command = ChatCompletion | CreateInstance | DeleteInstance
"""Every command there is."""
