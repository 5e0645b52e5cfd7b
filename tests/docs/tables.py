"""The README's tables, made from the code: `python -m tests.docs.tables` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from api.cli import options
from api.errors import WHEN, WIRE
from infrastructure.settings import Settings

README = Path(__file__).parents[2] / "README.md"


def settings() -> str:
    """Every setting, its default and its meaning."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for field in msgspec.structs.fields(Settings):
        default = options.default(field.name)
        shown = "your platform's user data folder" if field.name == "home" else _shown(default)
        meaning = options.description(field.name).rpartition(" [")[0]
        rows.append(f"| `{options.variable(field.name)}` | {shown} | {meaning} |")
    return "\n".join(rows)


def _shown(default: object) -> str:
    if default == "":
        return "empty"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def errors() -> str:
    """Every error: status, type, code, and when it is sent."""
    rows = ["| status | type | code | when |", "|---|---|---|---|"]
    for name, wire in sorted(WIRE.items(), key=lambda item: item[1].status):
        code = "null" if wire.code is None else f"`{wire.code}`"
        notes = [WHEN[name]]
        if wire.retry_after is not None:
            notes.append(f"`Retry-After: {wire.retry_after}`")
        if not wire.again:
            notes.append("`x-should-retry: false`")
        rows.append(f"| {wire.status} | {wire.type} | {code} | {'; '.join(notes)} |")
    return "\n".join(rows)


TABLES = {"settings": settings, "errors": errors}


def with_tables(readme: str) -> str:
    """A README whose tables are up to date."""
    for name, table in TABLES.items():
        start, end = f"<!-- {name} -->\n\n", f"\n\n<!-- /{name} -->"
        pattern = re.escape(start) + "(.*?)" + re.escape(end)
        filled = start + table() + end
        readme, found = re.subn(pattern, filled.replace("\\", r"\\"), readme, flags=re.DOTALL)
        assert found == 1, f"README.md has no place for the table of {name}"
    return readme


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
