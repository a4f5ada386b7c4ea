"""Wire models of /v1/batches."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon_gateway.openai.files import LifeSeconds
from antiphon_gateway.store.records import Batch, BatchStatus, LineError

MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=16)]


class BatchQuery(Struct):
    """Which batches GET /v1/batches lists."""

    after: Annotated[str, Meta(pattern="^batch_[A-Za-z0-9_-]{1,64}$")] = ""
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class OutputExpiry(Struct, forbid_unknown_fields=True):
    """Life of the files that a batch makes."""

    anchor: Literal["created_at"]
    seconds: LifeSeconds


class BatchRequest(Struct):
    """POST /v1/batches; null is the same as absent."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None


class RequestCounts(Struct):
    """Lines of a batch."""

    total: int
    completed: int
    failed: int


class BatchErrors(Struct):
    """What is wrong with the input."""

    data: list[LineError]
    object: Literal["list"] = "list"


class BatchObject(Struct, kw_only=True):
    """A batch as clients see it."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: str
    created_at: int
    expires_at: int
    request_counts: RequestCounts
    errors: BatchErrors | None
    output_file_id: str | None
    error_file_id: str | None
    metadata: dict[str, str] | None
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    object: Literal["batch"] = "batch"


class BatchList(Struct):
    """GET /v1/batches."""

    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


def batch_object(batch: Batch) -> BatchObject:
    """The wire form of a batch."""
    record = batch.record
    times = record.times
    return BatchObject(
        id=batch.id,
        endpoint=record.endpoint,
        input_file_id=batch.input_file_id,
        completion_window=record.completion_window,
        status=batch.status,
        created_at=times[BatchStatus.VALIDATING],
        expires_at=batch.expires_at,
        request_counts=RequestCounts(batch.total, batch.completed, batch.failed),
        errors=BatchErrors(record.errors) if record.errors else None,
        output_file_id=record.output_file_id,
        error_file_id=record.error_file_id,
        metadata=record.metadata,
        in_progress_at=times.get(BatchStatus.IN_PROGRESS),
        finalizing_at=times.get(BatchStatus.FINALIZING),
        completed_at=times.get(BatchStatus.COMPLETED),
        failed_at=times.get(BatchStatus.FAILED),
        expired_at=times.get(BatchStatus.EXPIRED),
        cancelling_at=times.get(BatchStatus.CANCELLING),
        cancelled_at=times.get(BatchStatus.CANCELLED),
    )
