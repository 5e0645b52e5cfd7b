"""The log's schema and how it came to be, run by Alembic when a log is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection

REVISIONS = ("0001",)
"""Every revision this version knows, oldest first; the last is the one it works with.

They stand here too because Alembic takes a while to import, which a start that has nothing
to migrate should not wait for.
"""


def upgrade(connection: Connection) -> None:
    """Bring the log on a connection to the latest revision, in its present transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, REVISIONS[-1])
