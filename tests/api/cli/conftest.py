"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.cli import sample_log


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a log at rest, which no test changes."""
    home = tmp_path_factory.mktemp("sample")
    sample_log.make(home)
    return home
