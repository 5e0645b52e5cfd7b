"""${message}."""

from __future__ import annotations

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Write the DDL by hand: Alembic's batch mode loses STRICT."""
    op.execute("""${upgrades if upgrades else ""}""")
