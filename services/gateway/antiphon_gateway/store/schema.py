"""The tables. Times are seconds since the epoch; absent times are null.

A change here needs a migration under ``migrations/versions``; a test compares the two.
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

store_identity = sa.Table(
    "store_identity",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),  # The one row, also in the blob folder
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),  # SHA-256 hex of the key
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("grant", sa.LargeBinary, nullable=False),  # JSON of identity.keys.KeyRecord
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("revoked_at", sa.BigInteger),
)

files = sa.Table(
    "files",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # Ordered by creation
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("filename", sa.Text, nullable=False),
    sa.Column("purpose", sa.String(32), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
    sa.Column("blob", sa.String(64), nullable=False),
    sa.Index("files_of_tenant", "tenant", "id"),
    sa.Index("files_by_expiry", "expires_at"),
)

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # Ordered by creation
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("input_file_id", sa.String(64), nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
    sa.Column("total", sa.Integer, nullable=False, server_default="0"),
    sa.Column("completed", sa.Integer, nullable=False, server_default="0"),
    sa.Column("failed", sa.Integer, nullable=False, server_default="0"),
    sa.Column("record", sa.LargeBinary, nullable=False),  # JSON of store.batches.BatchRecord
    sa.Column("owner", sa.String(64), nullable=False, server_default=""),
    sa.Column("owned_until", sa.Float, nullable=False, server_default="0"),
    sa.Index("batches_of_tenant", "tenant", "id"),
    sa.Index("batches_by_status", "status"),
)

batch_rows = sa.Table(
    "batch_rows",
    metadata,
    sa.Column("batch_id", sa.String(64), primary_key=True),
    sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("failed", sa.Boolean, nullable=False),
    sa.Column("row", sa.LargeBinary, nullable=False),  # One line of an output file
)

responses = sa.Table(
    "responses",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("previous_id", sa.String(64)),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
    sa.Column("input", sa.LargeBinary, nullable=False),  # JSON list of input items
    sa.Column("response", sa.LargeBinary, nullable=False),  # JSON of the response object
    sa.Index("responses_by_expiry", "expires_at"),
)

voice_consents = sa.Table(
    "voice_consents",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # Ordered by creation
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("language", sa.String(64), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),  # Hexadecimal digest of the recording
    sa.Column("blob", sa.String(64), nullable=False),
    sa.Index("voice_consents_of_tenant", "tenant", "id"),
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # SHA-256 of tenant, key, route, name
    sa.Column("body_hash", sa.String(64), nullable=False),
    sa.Column("status", sa.Integer),  # Null while the first request runs
    sa.Column("headers", sa.LargeBinary),
    sa.Column("body", sa.LargeBinary),
    sa.Column("expires_at", sa.Float, nullable=False),
    sa.Index("idempotency_by_expiry", "expires_at"),
)

usage = sa.Table(
    "usage",
    metadata,
    sa.Column("day", sa.String(10), primary_key=True),  # UTC, YYYY-MM-DD
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("key_id", sa.String(64), primary_key=True),
    sa.Column("model", sa.String(255), primary_key=True),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("cached_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("audio_seconds", sa.Float, nullable=False),
)

quota_buckets = sa.Table(
    "quota_buckets",
    metadata,
    sa.Column("subject", sa.String(160), primary_key=True),
    sa.Column("resource", sa.String(16), primary_key=True),
    sa.Column("level", sa.Float, nullable=False),  # What no replica has leased
    sa.Column("updated_at", sa.Float, nullable=False),
)

quota_running = sa.Table(
    "quota_running",
    metadata,
    sa.Column("subject", sa.String(160), primary_key=True),
    sa.Column("replica", sa.String(64), primary_key=True),
    sa.Column("count", sa.Integer, nullable=False),
    sa.Column("seen_at", sa.Float, nullable=False),
)
