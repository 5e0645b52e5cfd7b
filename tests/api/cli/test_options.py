"""Options made from Settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from api.cli import options
from api.cli.serve import serve
from infrastructure.settings import Settings

NAMES = [field.name for field in msgspec.structs.fields(Settings)]


def built(arguments: list[str], **variables: str) -> tuple[Settings | None, Result]:
    """The settings that these arguments and variables give."""
    seen: list[Settings] = []

    @click.command()
    @options.setting_options()
    def command(settings: Settings) -> None:
        seen.append(settings)

    unset: dict[str, str | None] = {options.variable(name): None for name in NAMES}
    result = CliRunner().invoke(command, arguments, env={**unset, **variables})
    return (seen[0] if seen else None), result


def test_without_options_settings_are_the_defaults() -> None:
    settings, _ = built([])
    assert settings == Settings()


@pytest.mark.parametrize("name", NAMES)
def test_serve_help_documents_every_setting_with_its_variable(name: str) -> None:
    help = CliRunner().invoke(serve, ["--help"], terminal_width=10_000).output
    line = next(line for line in help.splitlines() if f" {options.flag(name)}" in line)
    assert f"[{options.variable(name)}; " in line
    assert len(line.split("[")[0].split()) > 4, "it has a description"


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        (["--max-tokens", "7"], {}, {"max_tokens": 7}),
        ([], {"INFERLOG_MAX_TOKENS": "7"}, {"max_tokens": 7}),
        (["--max-tokens", "7"], {"INFERLOG_MAX_TOKENS": "8"}, {"max_tokens": 7}),
        ([], {"INFERLOG_MAX_TOKENS": "", "INFERLOG_LENIENT": "", "INFERLOG_HOME": ""}, {}),
        (["--lenient"], {}, {"lenient": True}),
        (["--no-lenient"], {"INFERLOG_LENIENT": "1"}, {"lenient": False}),
        ([], {"INFERLOG_LENIENT": "Yes"}, {"lenient": True}),
        ([], {"INFERLOG_LENIENT": "off"}, {"lenient": False}),
        (["--home", "/some/where"], {}, {"home": Path("/some/where")}),
        (["--home", "~/there"], {}, {"home": Path.home() / "there"}),
        ([], {"INFERLOG_ALLOW_ORIGIN": "http://a,http://b"}, {"allow_origin": "http://a,http://b"}),
    ],
)
def test_flags_go_before_variables_and_empty_variables_count_as_unset(
    arguments: list[str], variables: dict[str, str], expected: dict[str, Any]
) -> None:
    settings, result = built(arguments, **variables)
    assert settings == Settings(**expected), result.output


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("port", "x", "a whole number from 0 to 65535"),
        ("port", "65536", "a whole number from 0 to 65535"),
        ("queue", "0", "a whole number of at least 1"),
        ("max_tokens", "1.5", "a whole number"),
        ("lenient", "perhaps", "true or false"),
        ("log_level", "loud", "debug"),
        ("engine", "steam", "scripted:FILE"),
        ("engine", "scripted:/no/such/file", "scripted:FILE"),
    ],
)
def test_a_bad_value_names_flag_and_variable_and_what_is_wanted(
    name: str, value: str, wanted: str
) -> None:
    for arguments, variables in (
        ([], {options.variable(name): value}),
        ([options.flag(name), value], {}),
    ):
        if arguments and name == "lenient":
            continue
        settings, result = built(arguments, **variables)
        assert settings is None
        assert result.exit_code == 2
        assert f"{options.flag(name)} ({options.variable(name)})" in result.output
        assert wanted in result.output
        assert value in result.output


def test_a_command_may_take_some_settings_only() -> None:
    @click.command()
    @options.setting_options("home")
    def command(settings: Settings) -> None:
        assert settings == Settings(home=Path("here"))

    assert CliRunner().invoke(command, ["--home", "here"]).exit_code == 0
    assert CliRunner().invoke(command, ["--port", "1"]).exit_code == 2
