"""Reads of the log through aiosqlite, on connections that can do nothing else.

Each read is one short transaction that ends before its rows are handed out, so however slow
its caller, no read keeps the WAL from being checkpointed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Row, Select
from sqlalchemy.exc import SQLAlchemyError

from infrastructure import tables as t
from infrastructure.event_store import CommandRow, LogUnavailable, Snapshot, StreamInfo
from infrastructure.feed import CLOSED
from infrastructure.rows import COMMANDS, STREAMS, select_snapshot
from infrastructure.sqlite.connect import async_reader_engine
from infrastructure.sqlite.failures import reason_of


class Reader:
    """A few connections that read the log."""

    def __init__(self, path: Path) -> None:
        self._engine = async_reader_engine(path)
        self._reads: set[asyncio.Task[Sequence[Row[Any]]]] = set()
        self._closed = False

    async def rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        """Run one query.

        Raises:
            LogUnavailable: the log was closed or cannot be read.
        """
        if self._closed:
            raise LogUnavailable(CLOSED)
        # A client that goes away cancels its handler; that must not tear a connection from
        # a query under way, which SQLAlchemy could only throw away.
        read = asyncio.create_task(self._rows(query))
        self._reads.add(read)
        read.add_done_callback(self._done)
        return await asyncio.shield(read)

    def _done(self, read: asyncio.Task[Sequence[Row[Any]]]) -> None:
        self._reads.discard(read)
        if not read.cancelled():
            read.exception()  # seen, also where nobody waits for it any more

    async def _rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        try:
            async with self._engine.connect() as connection:
                return (await connection.execute(query)).all()
        except (SQLAlchemyError, OSError) as error:
            raise LogUnavailable(reason_of(error)) from error

    async def stream(self, name: str) -> StreamInfo | None:
        """A stream's head."""
        rows = await self.rows(STREAMS.where(t.streams.c.name == name))
        return StreamInfo(**dict(rows[0]._mapping)) if rows else None

    async def command(self, command_id: str) -> CommandRow | None:
        """A command by its id."""
        rows = await self.rows(COMMANDS.where(t.commands.c.command_id == command_id))
        return CommandRow(**dict(rows[0]._mapping)) if rows else None

    async def command_by_key(self, actor: str, idempotency_key: str) -> CommandRow | None:
        """A command by its actor and key."""
        rows = await self.rows(
            COMMANDS.where(
                t.commands.c.actor == actor, t.commands.c.idempotency_key == idempotency_key
            )
        )
        return CommandRow(**dict(rows[0]._mapping)) if rows else None

    async def snapshot(self, version: int, at_most: int) -> Snapshot | None:
        """The latest snapshot of a fold's version, up to a position."""
        rows = await self.rows(select_snapshot(version, at_most))
        return Snapshot(*rows[0]) if rows else None

    async def close(self) -> None:
        """Let reads under way end, and close all connections."""
        self._closed = True
        await asyncio.gather(*self._reads, return_exceptions=True)
        await self._engine.dispose()
