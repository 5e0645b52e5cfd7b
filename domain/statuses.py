"""Where a runner is in its life; the names are exo's."""

from __future__ import annotations

import msgspec


class Status(msgspec.Struct, frozen=True, tag=True):
    """Where a runner is in its life."""


class Idle(Status, frozen=True):
    """Not started."""


class Connecting(Status, frozen=True):
    """Waits for the other ranks."""


class Connected(Status, frozen=True):
    """All ranks are there."""


class Loading(Status, frozen=True):
    """Reads weights."""


class Loaded(Status, frozen=True):
    """Has the weights."""


class WarmingUp(Status, frozen=True):
    """Compiles and runs a first step."""


class Ready(Status, frozen=True):
    """Takes tasks."""


class Running(Status, frozen=True):
    """Takes tasks and has some. Derived for views; never recorded."""


class ShuttingDown(Status, frozen=True):
    """Was told to end."""


class Shutdown(Status, frozen=True):
    """Ended as told."""


class Failed(Status, frozen=True, kw_only=True):
    """Ended by itself, or could not load.

    `permanent`: starting it again would fail the same way.
    """

    error_message: str
    permanent: bool = False


RunnerStatus = (
    Idle
    | Connecting
    | Connected
    | Loading
    | Loaded
    | WarmingUp
    | Ready
    | Running
    | ShuttingDown
    | Shutdown
    | Failed
)
