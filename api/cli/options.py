"""Command line options made from `infrastructure.settings.Settings`, which says it all once.

A field `max_tokens` becomes `--max-tokens` and INFERLOG_MAX_TOKENS, with the field's default,
limits and description. A variable that is set to nothing counts as not set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import click
import msgspec
from msgspec import inspect

from infrastructure.settings import Settings

PREFIX = "INFERLOG_"

_FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}
_TYPES: Mapping[str, Any] = get_type_hints(Settings, include_extras=True)

Command = Callable[..., Any]


def flag(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def _log_level(value: str) -> str | None:
    levels = ("debug", "info", "warning", "error")
    return None if value in levels else f"must be one of {', '.join(levels)}"


def _engine(value: str) -> str | None:
    kind, _, file = value.partition(":")
    if value == "mlx" or (kind == "scripted" and file and Path(file).is_file()):
        return None
    return "must be mlx, or scripted:FILE where FILE exists"


CHECKS: Mapping[str, Callable[[str], str | None]] = {"log_level": _log_level, "engine": _engine}
"""What is wrong with a value, where a setting's type does not tell."""


class Switch(click.types.BoolParamType):
    """True or false, as a variable says it; an option without a value says true."""

    name = "switch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """The switch's position."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"must be true or false, not {value!r}", param, ctx)


class SettingOption(click.Option):
    """An option whose errors name both its flag and its variable."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """The names of what has a bad value."""
        return f"{self.opts[0]} ({self.envvar})"


def _bare(name: str) -> inspect.Type:
    """A setting's type without its description."""
    info = inspect.type_info(_TYPES[name])
    return info.type if isinstance(info, inspect.Metadata) else info


def _decode(type_: type, value: Any) -> Any:
    if type_ is Path:
        return Path(value).expanduser()
    raise NotImplementedError(type_)


def _check(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Hold a value, or a default, to the limits that its field names."""
    assert param.name is not None
    check = CHECKS.get(param.name)
    try:
        result = msgspec.convert(value, _TYPES[param.name], strict=False, dec_hook=_decode)
        wrong = check(result) if check else None
    except msgspec.ValidationError:
        wrong = f"must be {_wanted(_bare(param.name))}"
    if wrong is not None:
        raise click.BadParameter(f"{wrong}, not {str(value)!r}", ctx, param)
    return result


def _metavar(info: inspect.Type) -> str:
    match info:
        case inspect.IntType():
            return "N"
        case inspect.LiteralType():
            return "|".join(map(str, info.values))
        case inspect.CustomType():
            return "FOLDER"
        case _:
            return "TEXT"


def _wanted(info: inspect.Type) -> str:
    match info:
        case inspect.IntType(ge=None, le=None):
            return "a whole number"
        case inspect.IntType(ge=low, le=None):
            return f"a whole number of at least {low}"
        case inspect.IntType(ge=low, le=high):
            return f"a whole number from {low} to {high}"
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, info.values))}"
        case _:
            return "text"


def default(name: str) -> Any:
    """A setting's default, as it is on this machine."""
    field = _FIELDS[name]
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def description(name: str) -> str:
    """A setting's meaning, its variable and its default."""
    info = inspect.type_info(_TYPES[name])
    schema = info.extra_json_schema if isinstance(info, inspect.Metadata) else None
    text = (schema or {}).get("description", "")
    value = default(name)
    shown = {True: "on", False: "off", "": "empty"}.get(value, value)
    return f"{text} [{variable(name)}; {shown}]"


def _option(name: str) -> Callable[[Command], Command]:
    info = _bare(name)
    switch = isinstance(info, inspect.BoolType)
    return click.option(
        f"{flag(name)}/--no-{flag(name)[2:]}" if switch else flag(name),
        name,
        cls=SettingOption,
        type=Switch() if switch else click.STRING,
        metavar=None if switch else _metavar(info),
        default=functools.partial(default, name),
        envvar=variable(name),
        help=description(name),
        callback=_check,
    )


def setting_options(*names: str) -> Callable[[Command], Command]:
    """Give a command the options of settings, and their values as its argument `settings`.

    Args:
        names: the settings wanted; all if none is named. The others keep their defaults.
    """
    chosen = names or tuple(_FIELDS)

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def with_settings(**values: Any) -> Any:
            fields = {name: values.pop(name) for name in chosen}
            return function(settings=Settings(**fields), **values)

        command: Command = with_settings
        for name in reversed(chosen):
            command = _option(name)(command)
        return command

    return decorate
