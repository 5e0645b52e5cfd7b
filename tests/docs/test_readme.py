"""The README keeps up with the code."""

from __future__ import annotations

import re

import msgspec
import pytest

from api.cli import options
from api.cli.main import COMMANDS
from infrastructure.settings import Settings
from tests.docs.tables import README, with_tables

NAMES = [field.name for field in msgspec.structs.fields(Settings)]


@pytest.fixture(scope="module")
def readme() -> str:
    assert README.exists(), "there is no README.md"
    return README.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_documented_with_its_variable(name: str, readme: str) -> None:
    variable = options.variable(name)
    assert re.search(rf"\b{variable}\b", readme), f"README.md does not mention {variable}"


def test_no_setting_is_documented_that_does_not_exist(readme: str) -> None:
    mentioned = set(re.findall(rf"\b{options.PREFIX}[A-Z_]+\b", readme))
    unknown = mentioned - {options.variable(name) for name in NAMES}
    assert not unknown, f"README.md mentions settings that do not exist: {sorted(unknown)}"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_mentioned(command: str, readme: str) -> None:
    assert f"inferlog {command}" in readme, f"README.md does not mention `inferlog {command}`"


def test_the_tables_are_those_of_the_code(readme: str) -> None:
    assert readme == with_tables(readme), "run `python -m tests.docs.tables`"
