"""Responses that can be retrieved and continued."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Makes the table of responses."""
    op.create_table(
        "responses",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("previous_id", sa.String(64)),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("input", sa.LargeBinary, nullable=False),
        sa.Column("response", sa.LargeBinary, nullable=False),
    )
    op.create_index("responses_by_expiry", "responses", ["expires_at"])


def downgrade() -> None:
    """Drops it."""
    op.drop_table("responses")
