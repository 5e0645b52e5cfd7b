"""From a URL to a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from infrastructure.event_store import StoreError
from infrastructure.opening import log_path, open_store


@pytest.mark.parametrize("url", [None, ""])
def test_without_a_url_the_log_is_in_the_data_folder(url: str | None, tmp_path: Path) -> None:
    assert log_path(url, tmp_path) == tmp_path / "log.db"


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
def test_a_url_names_a_file(scheme: str, tmp_path: Path) -> None:
    assert log_path(f"{scheme}:////data/log.db", tmp_path) == Path("/data/log.db")
    assert log_path(f"{scheme}:///log.db", tmp_path) == Path("log.db")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://user:secret@host/db", "PostgreSQL is not served yet"),
        ("postgresql+asyncpg://user:secret@host/db", "PostgreSQL is not served yet"),
        ("mysql://user:secret@host/db", "mysql is not served"),
        ("sqlite+pysqlcipher:///x.db", "is not served"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///log.db?mode=ro", "and nothing else"),
        ("secret", "is not a URL"),
    ],
)
async def test_any_other_url_is_refused_in_words(url: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=words) as caught:
        await open_store(url, tmp_path)
    assert "secret" not in str(caught.value)


async def test_opening_makes_the_data_folder_for_its_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "some" / "home"
    store = await open_store(None, home)
    await store.close()
    assert home.stat().st_mode & 0o077 == 0
    assert (home / "log.db").stat().st_mode & 0o077 == 0
