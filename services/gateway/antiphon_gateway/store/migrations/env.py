"""Run by Alembic inside ``antiphon_gateway.store.database``, on its connection."""

from __future__ import annotations

from alembic import context

from antiphon_gateway.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
