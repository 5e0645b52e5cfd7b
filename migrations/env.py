"""Alembic's entry. It migrates the connection that `migrations.upgrade` hands it."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    # A start that is killed in the middle leaves the schema as it was.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
