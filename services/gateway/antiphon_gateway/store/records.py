"""What the store keeps, as plain values; imports no database."""

from __future__ import annotations

import re
import secrets
import time
from enum import StrEnum

from msgspec import Struct, field

from antiphon_gateway.identity.principal import Principal


class StoredFile(Struct, frozen=True):
    """A file of a tenant."""

    id: str
    tenant: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    blob: str
    """Name of its contents in the blob folder."""
    expires_at: int | None = None


class StoredResponse(Struct, frozen=True):
    """A response of a tenant."""

    id: str
    tenant: str
    created_at: int
    expires_at: int
    input: bytes
    """JSON list of the items that its request brought."""
    response: bytes
    """JSON of the response object."""
    previous_id: str | None = None


class StoredConsent(Struct, frozen=True):
    """A speaker's consent, kept by a tenant."""

    id: str
    tenant: str
    name: str
    language: str
    """BCP 47 tag."""
    created_at: int
    sha256: str
    """Hexadecimal digest of the recording."""
    blob: str
    """Name of the recording in the blob folder."""


class BatchStatus(StrEnum):
    """Where a batch stands."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


ACTIVE = (
    BatchStatus.VALIDATING,
    BatchStatus.IN_PROGRESS,
    BatchStatus.FINALIZING,
    BatchStatus.CANCELLING,
)
"""Statuses in which there is work to do."""


class LineError(Struct, frozen=True):
    """What is wrong with one line of a batch's input."""

    code: str
    message: str
    line: int | None = None
    """From 1."""
    param: str | None = None


class BatchRecord(Struct):
    """What of a batch is not asked for by the database."""

    endpoint: str
    completion_window: str
    principal: Principal
    """Whom its requests are for."""
    metadata: dict[str, str] | None = None
    output_expires_seconds: int | None = None
    times: dict[str, int] = field(default_factory=dict)
    """When it came to each status."""
    errors: list[LineError] = field(default_factory=list)
    output_file_id: str | None = None
    error_file_id: str | None = None


class Batch(Struct):
    """A batch of a tenant."""

    id: str
    tenant: str
    status: BatchStatus
    input_file_id: str
    expires_at: int
    record: BatchRecord
    total: int = 0
    completed: int = 0
    failed: int = 0

    def enter(self, status: BatchStatus) -> None:
        """Moves to a status and notes the time, the first time."""
        self.status = status
        self.record.times.setdefault(status, int(time.time()))


_ID_FORM = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_object_id(text: str) -> bool:
    """Whether the text can be an id; databases refuse some characters that clients may send."""
    return _ID_FORM.fullmatch(text) is not None


def new_object_id(prefix: str) -> str:
    """A fresh id; ids of one prefix sort by the time at which they were made."""
    return f"{prefix}{time.time_ns() // 1000:014x}{secrets.token_hex(9)}"
