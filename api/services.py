"""What every route works with. The composition root makes it once."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import uuid_utils
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from api.prompting import Prompter
from api.refusals import Refusals
from domain.decide import Policy
from infrastructure.command_bus import CommandBus
from infrastructure.event_store import EventStore
from infrastructure.projection import Projection
from infrastructure.settings import Settings


def clock() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000


def new_id() -> str:
    """A UUIDv7: ids sort as they were drawn."""
    return str(uuid_utils.uuid7())


def new_seed() -> int:
    """A seed that every JSON reader keeps exact, so that it can be sent back."""
    return secrets.randbits(53)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the routes use, and nothing else.

    Attributes:
        node_id: where new instances are placed.
        stopping: once set, nothing is taken on and open bodies are cut off.
        clock: microseconds since the epoch.
    """

    store: EventStore
    projection: Projection
    bus: CommandBus
    settings: Settings
    node_id: str
    prompter: Prompter
    refusals: Refusals
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    clock: Callable[[], int] = clock
    ids: Callable[[], str] = new_id
    seeds: Callable[[], int] = new_seed

    @classmethod
    def build(
        cls, store: EventStore, projection: Projection, settings: Settings, node_id: str
    ) -> Services:
        """Services over a store and its projection, with what else they need."""
        refusals = Refusals(store, clock)
        bus = CommandBus(store, projection, Policy(queue=settings.queue), refusals.admit)
        return cls(
            store=store,
            projection=projection,
            bus=bus,
            settings=settings,
            node_id=node_id,
            prompter=Prompter(),
            refusals=refusals,
        )


Provided = NamedDependency[SkipValidation[Services]]
"""Type of a route's parameter `services`."""
