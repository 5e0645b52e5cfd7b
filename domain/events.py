"""What has happened. The log is a sequence of these and the only truth there is.

Fields named in `CONTENT` are what users said and models answered. They are stored apart
from the rest, so that they can be sealed and later erased without breaking the record;
everything else is plain JSON that SQL can look inside.

Streams: `completion/<command id>`, `instance/<id>`, `node/<id>` and `server`.
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import msgspec

from domain.commands import Caller, ModelFacts, Sampling
from domain.deltas import Content as Content
from domain.deltas import Delta as Delta
from domain.deltas import Reasoning as Reasoning
from domain.deltas import RefusalText as RefusalText
from domain.deltas import TokenLogprob as TokenLogprob
from domain.deltas import ToolCall as ToolCall
from domain.errors import Code
from domain.statuses import Connected as Connected
from domain.statuses import Connecting as Connecting
from domain.statuses import Failed as Failed
from domain.statuses import Idle as Idle
from domain.statuses import Loaded as Loaded
from domain.statuses import Loading as Loading
from domain.statuses import Ready as Ready
from domain.statuses import RunnerStatus as RunnerStatus
from domain.statuses import Running as Running
from domain.statuses import Shutdown as Shutdown
from domain.statuses import ShuttingDown as ShuttingDown
from domain.statuses import Status as Status
from domain.statuses import WarmingUp as WarmingUp

FinishReason = Literal["stop", "length", "tool_calls", "error"]
Ended = Literal["Complete", "TimedOut", "Cancelled"]


class Struct(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event: immutable, named by its class, with its content told apart."""

    CONTENT: ClassVar[frozenset[str]] = frozenset()
    VERSION: ClassVar[int] = 1
    """Version of this event's shape, stored beside it."""


# --- commands -------------------------------------------------------------------------


class CommandAccepted(Struct, frozen=True, kw_only=True):
    """A command was taken on; what follows from it stands in the same transaction."""

    CONTENT = frozenset({"body"})
    command_id: str
    kind: str
    """The command's class name."""
    caller: Caller
    body_digest: str
    """SHA-256 of the body, in hex."""
    body: bytes
    """The request's body, byte for byte."""


class CommandRefused(Struct, frozen=True, kw_only=True):
    """A command was understood and turned down."""

    CONTENT = frozenset({"body", "message"})
    command_id: str
    kind: str
    caller: Caller
    body_digest: str
    code: Code
    param: str | None = None
    message: str
    body: bytes


class RequestRefused(Struct, frozen=True, kw_only=True):
    """A request failed before it became a command: no such path, not JSON, too large."""

    CONTENT = frozenset({"message"})
    caller: Caller
    method: str
    path: str
    status: int
    code: Code
    param: str | None = None
    message: str


class RefusalsSummarized(Struct, frozen=True, kw_only=True):
    """Refusals past the rate at which they are recorded one by one."""

    actor: str
    count: int
    since: int
    """Microseconds since the epoch."""
    until: int
    codes: dict[str, int]
    """How many of each error code."""


# --- tasks ----------------------------------------------------------------------------


class TaskCreated(Struct, frozen=True, kw_only=True):
    """A ChatCompletion task waits to be run. Its id is its command's."""

    CONTENT = frozenset({"prompt_text", "token_ids", "stop", "user", "metadata"})
    task_id: str
    model_id: str
    model: ModelFacts
    created_at: int
    """Microseconds since the epoch."""
    sampling: Sampling
    prompt_tokens: int
    stream: bool = False
    ignored: tuple[str, ...] = ()
    prompt_text: str
    """The prompt as the template rendered it. Nothing is ever rendered again."""
    token_ids: tuple[int, ...]
    stop: tuple[str, ...] = ()
    user: str | None = None
    metadata: dict[str, str] | None = None


class TaskAcknowledged(Struct, frozen=True, kw_only=True):
    """A node claimed the task for one of its runners: attempt number `attempt` begins."""

    task_id: str
    attempt: int
    node_id: str
    epoch: int
    instance_id: str
    runner_id: str


class AttemptEnded(Struct, frozen=True, kw_only=True):
    """An attempt ended without ending the task, which waits to be claimed again."""

    CONTENT = frozenset({"error_message"})
    task_id: str
    attempt: int
    reason: Literal["runner_died", "step_failed", "drained"]
    committed_tokens: int
    """Tokens of the task in the log when the attempt ended."""
    error_message: str = ""


class ChunkGenerated(Struct, frozen=True, kw_only=True):
    """One choice's share of one or more decode steps. Never changes State.

    Text may lag tokens: a character can be split over tokens, and text that may yet
    become a stop string is held back.
    """

    CONTENT = frozenset({"token_ids", "deltas", "logprobs", "error_message"})
    attempt: int
    choice: int = 0
    first_index: int
    """Index of the first token within its choice, from 0."""
    token_ids: tuple[int, ...] = ()
    deltas: tuple[Delta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    error_message: str | None = None
    offset: int = 0
    """Microseconds since the runner began the attempt, by its monotonic clock."""


class TaskStatusUpdated(Struct, frozen=True, kw_only=True):
    """The task ended well, ran out of time, or was cancelled. Terminal."""

    task_id: str
    attempt: int
    status: Ended
    completion_tokens: int
    detail: str = ""
    """Which deadline passed, or who cancelled, in words for the client."""


class TaskFailed(Struct, frozen=True, kw_only=True):
    """The task ended with an error. Terminal."""

    CONTENT = frozenset({"message"})
    task_id: str
    attempt: int
    code: Code
    completion_tokens: int
    message: str


# --- models, instances, runners, nodes --------------------------------------------------


class ModelDownloadProgress(Struct, frozen=True, kw_only=True):
    """A model's folder is being downloaded or converted."""

    model_id: str
    node_id: str
    phase: str
    done_bytes: int
    total_bytes: int


class ModelPrepared(Struct, frozen=True, kw_only=True):
    """A model's folder is complete on a node."""

    model_id: str
    node_id: str
    source: str
    path: str
    model: ModelFacts
    context_length: int
    """Tokens of prompt and answer together."""
    vocab_size: int
    size_bytes: int
    architecture: str


class ModelPreparationFailed(Struct, frozen=True, kw_only=True):
    """A model's folder could not be made."""

    model_id: str
    node_id: str
    source: str
    error_message: str


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's share of an instance."""

    runner_id: str
    node_id: str
    rank: int
    world_size: int


class InstanceCreated(Struct, frozen=True, kw_only=True):
    """A model is to be kept loaded."""

    instance_id: str
    model_id: str
    source: str
    placed_by: str
    shards: tuple[Shard, ...]


class InstanceDeleted(Struct, frozen=True, kw_only=True):
    """A model is to be unloaded."""

    instance_id: str


class RunnerStatusUpdated(Struct, frozen=True, kw_only=True):
    """A runner moved on in its life."""

    runner_id: str
    instance_id: str
    node_id: str
    epoch: int
    at: int
    """Microseconds since the epoch."""
    status: RunnerStatus


class NodeStarted(Struct, frozen=True, kw_only=True):
    """A node began. Its earlier runners are gone and their tasks wait again."""

    node_id: str
    epoch: int
    versions: dict[str, str] = {}
    settings: dict[str, str] = {}


class NodeStopped(Struct, frozen=True, kw_only=True):
    """A node ended as told."""

    node_id: str
    epoch: int


Event = (
    CommandAccepted
    | CommandRefused
    | RequestRefused
    | RefusalsSummarized
    | TaskCreated
    | TaskAcknowledged
    | AttemptEnded
    | ChunkGenerated
    | TaskStatusUpdated
    | TaskFailed
    | ModelDownloadProgress
    | ModelPrepared
    | ModelPreparationFailed
    | InstanceCreated
    | InstanceDeleted
    | RunnerStatusUpdated
    | NodeStarted
    | NodeStopped
)
"""Every event there is."""

EVENT_TYPES: dict[str, type[Event]] = {cls.__name__: cls for cls in get_args(Event)}
TOKEN_TYPE = ChunkGenerated.__name__
"""The one type that never changes State and is skipped when State is rebuilt."""


def is_terminal(event: Event) -> bool:
    """Whether the event ends its completion, after which its stream is closed."""
    return isinstance(event, TaskStatusUpdated | TaskFailed | CommandRefused)
