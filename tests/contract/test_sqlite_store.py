"""The SQLite store keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from infrastructure.event_store import EventStore
from infrastructure.sqlite.store import SqliteEventStore
from tests.contract.base import Opener
from tests.contract.store_contract import StoreContract


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        async def open_log(**options: object) -> EventStore:
            return await SqliteEventStore.open(tmp_path / "log.db", **options)  # type: ignore[arg-type]

        return open_log
