"""The first schema: keys, files, batches, idempotency, usage and shared quotas."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes every table."""
    _identity_and_usage()
    _files_and_batches()


def downgrade() -> None:
    """Drops every table."""
    for name in _TABLES:
        op.drop_table(name)


_TABLES = (
    "store_identity",
    "api_keys",
    "files",
    "batches",
    "batch_rows",
    "idempotency",
    "usage",
    "quota_buckets",
    "quota_running",
)


def _identity_and_usage() -> None:
    op.create_table("store_identity", sa.Column("id", sa.String(32), primary_key=True))
    op.create_table(
        "api_keys",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("grant", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("revoked_at", sa.BigInteger),
    )
    op.create_table(
        "idempotency",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("body_hash", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("headers", sa.LargeBinary),
        sa.Column("body", sa.LargeBinary),
        sa.Column("expires_at", sa.Float, nullable=False),
    )
    op.create_table(
        "usage",
        sa.Column("day", sa.String(10), primary_key=True),
        sa.Column("tenant", sa.String(64), primary_key=True),
        sa.Column("key_id", sa.String(64), primary_key=True),
        sa.Column("model", sa.String(255), primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("audio_seconds", sa.Float, nullable=False),
    )
    op.create_table(
        "quota_buckets",
        sa.Column("subject", sa.String(160), primary_key=True),
        sa.Column("resource", sa.String(16), primary_key=True),
        sa.Column("level", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
    )
    op.create_table(
        "quota_running",
        sa.Column("subject", sa.String(160), primary_key=True),
        sa.Column("replica", sa.String(64), primary_key=True),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
    )
    op.create_index("idempotency_by_expiry", "idempotency", ["expires_at"])


def _files_and_batches() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("blob", sa.String(64), nullable=False),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("input_file_id", sa.String(64), nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("total", sa.Integer, nullable=False, server_default="0"),
        sa.Column("completed", sa.Integer, nullable=False, server_default="0"),
        sa.Column("failed", sa.Integer, nullable=False, server_default="0"),
        sa.Column("record", sa.LargeBinary, nullable=False),
        sa.Column("owner", sa.String(64), nullable=False, server_default=""),
        sa.Column("owned_until", sa.Float, nullable=False, server_default="0"),
    )
    op.create_table(
        "batch_rows",
        sa.Column("batch_id", sa.String(64), primary_key=True),
        sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("failed", sa.Boolean, nullable=False),
        sa.Column("row", sa.LargeBinary, nullable=False),
    )
    op.create_index("files_of_tenant", "files", ["tenant", "id"])
    op.create_index("files_by_expiry", "files", ["expires_at"])
    op.create_index("batches_of_tenant", "batches", ["tenant", "id"])
    op.create_index("batches_by_status", "batches", ["status"])
