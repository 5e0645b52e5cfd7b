"""What a node can do next, as `domain.plan` says it."""

from __future__ import annotations

from typing import Literal

import msgspec

from domain.errors import Code


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do. `key` names it while it is under way."""

    @property
    def key(self) -> str:
        """Actions with one key are never under way at once."""
        raise TypeError


class PrepareModel(Struct, frozen=True, kw_only=True):
    """Make or fetch a model's folder."""

    model_id: str
    source: str

    @property
    def key(self) -> str:
        """One preparation a model."""
        return f"model/{self.model_id}"


class StartRunner(Struct, frozen=True, kw_only=True):
    """Start a runner process and load its model."""

    instance_id: str
    runner_id: str
    rank: int
    world_size: int
    path: str

    @property
    def key(self) -> str:
        """One start or stop a runner."""
        return f"runner/{self.runner_id}"


class StopRunner(Struct, frozen=True, kw_only=True):
    """End a runner: in good order, or at once where it hangs."""

    runner_id: str
    reason: str
    kill: bool = False

    @property
    def key(self) -> str:
        """One start or stop a runner."""
        return f"runner/{self.runner_id}"


class ClaimTask(Struct, frozen=True, kw_only=True):
    """Claim a task and insert it into a runner's batch."""

    task_id: str
    attempt: int
    instance_id: str
    runner_id: str

    @property
    def key(self) -> str:
        """One action a task."""
        return f"task/{self.task_id}"


class EndAttempt(Struct, frozen=True, kw_only=True):
    """Give back a task whose runner is gone."""

    task_id: str
    attempt: int
    reason: Literal["runner_died", "step_failed", "drained"]
    error_message: str

    @property
    def key(self) -> str:
        """One action a task."""
        return f"task/{self.task_id}"


class EndTask(Struct, frozen=True, kw_only=True):
    """End a task that cannot go on, with an error or past its deadline."""

    task_id: str
    attempt: int
    code: Code
    message: str

    @property
    def key(self) -> str:
        """One action a task."""
        return f"task/{self.task_id}"


Action = PrepareModel | StartRunner | StopRunner | ClaimTask | EndAttempt | EndTask
"""Every action there is."""
