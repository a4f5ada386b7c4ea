"""Recorded consents of speakers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Makes the table of consents."""
    op.create_table(
        "voice_consents",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("language", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("blob", sa.String(64), nullable=False),
    )
    op.create_index("voice_consents_of_tenant", "voice_consents", ["tenant", "id"])


def downgrade() -> None:
    """Drops it."""
    op.drop_table("voice_consents")
