"""The one table from error reasons to HTTP status, type and code, and the error body."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from antiphon_core.errors import AntiphonError, Internal

from antiphon_gateway.openai.params import pointer_path, request_param

INVALID_REQUEST = "invalid_request_error"
AUTHENTICATION = "authentication_error"
PERMISSION = "permission_error"
NOT_FOUND = "not_found_error"
CONFLICT = "conflict_error"
RATE_LIMIT = "rate_limit_error"
QUOTA = "insufficient_quota"
SERVER = "server_error"


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """How one reason appears on the wire."""

    status: int
    type: str
    code: str
    retry: bool | None = None
    """Value of x-should-retry; None sends none and leaves it to the client's own rule."""


ERROR_TABLE: Mapping[str, ErrorRow] = {
    "INVALID_VALUE": ErrorRow(400, INVALID_REQUEST, "invalid_value"),
    "MISSING_FIELD": ErrorRow(400, INVALID_REQUEST, "missing_required_parameter"),
    "UNSUPPORTED_OPTION": ErrorRow(400, INVALID_REQUEST, "unsupported_parameter"),
    "UNSUPPORTED_MODALITY": ErrorRow(400, INVALID_REQUEST, "unsupported_modality"),
    "CONTEXT_LENGTH_EXCEEDED": ErrorRow(400, INVALID_REQUEST, "context_length_exceeded"),
    "EMPTY_PROMPT": ErrorRow(400, INVALID_REQUEST, "invalid_value"),
    "INVALID_AUDIO": ErrorRow(400, INVALID_REQUEST, "invalid_audio"),
    "INVALID_IMAGE": ErrorRow(400, INVALID_REQUEST, "invalid_image"),
    "INVALID_SCHEMA": ErrorRow(400, INVALID_REQUEST, "invalid_schema"),
    "TEMPLATE_ERROR": ErrorRow(400, INVALID_REQUEST, "template_error"),
    "STREAM_PROTOCOL": ErrorRow(500, SERVER, "internal_error"),
    "INVALID_CODES": ErrorRow(400, INVALID_REQUEST, "invalid_value"),
    "MODEL_NOT_FOUND": ErrorRow(404, INVALID_REQUEST, "model_not_found"),
    "VOICE_NOT_FOUND": ErrorRow(400, INVALID_REQUEST, "voice_not_found"),
    "ADAPTER_NOT_FOUND": ErrorRow(404, INVALID_REQUEST, "model_not_found"),
    "RESOURCE_NOT_FOUND": ErrorRow(404, NOT_FOUND, "not_found"),
    "ALREADY_EXISTS": ErrorRow(409, CONFLICT, "conflict", retry=False),
    "IN_USE": ErrorRow(409, CONFLICT, "conflict", retry=False),
    "CONSENT_REQUIRED": ErrorRow(400, INVALID_REQUEST, "missing_required_parameter"),
    "WRONG_STATE": ErrorRow(409, CONFLICT, "conflict", retry=False),
    "SPEAKER_MODEL_MISSING": ErrorRow(400, INVALID_REQUEST, "unsupported_parameter"),
    "CONFLICT": ErrorRow(409, CONFLICT, "conflict"),
    "QUEUE_FULL": ErrorRow(429, RATE_LIMIT, "capacity_exceeded"),
    "SLOTS_FULL": ErrorRow(429, RATE_LIMIT, "capacity_exceeded"),
    "KV_FULL": ErrorRow(429, RATE_LIMIT, "capacity_exceeded"),
    "MEMORY_PRESSURE": ErrorRow(429, RATE_LIMIT, "capacity_exceeded"),
    "RATE_LIMITED": ErrorRow(429, RATE_LIMIT, "rate_limit_exceeded"),
    "LIMIT_TOO_SMALL": ErrorRow(429, RATE_LIMIT, "rate_limit_exceeded", retry=False),
    "QUOTA_SPENT": ErrorRow(429, QUOTA, "insufficient_quota", retry=False),
    "TOO_LARGE": ErrorRow(413, INVALID_REQUEST, "request_too_large"),
    "BOOTING": ErrorRow(503, SERVER, "starting"),
    "DRAINING": ErrorRow(503, SERVER, "draining"),
    "WORKER_DIED": ErrorRow(502, SERVER, "bad_gateway"),
    "NO_BACKEND": ErrorRow(503, SERVER, "no_backend"),
    "BOOT_FAILED": ErrorRow(503, SERVER, "no_backend"),
    "ASLEEP": ErrorRow(503, SERVER, "no_backend"),
    "OVERLOADED": ErrorRow(503, SERVER, "overloaded"),
    "DEADLINE": ErrorRow(504, SERVER, "deadline_exceeded"),
    "INPUT_IDLE": ErrorRow(408, INVALID_REQUEST, "request_timeout"),
    "CANCELLED": ErrorRow(502, SERVER, "bad_gateway"),
    "UNAUTHENTICATED": ErrorRow(401, AUTHENTICATION, "invalid_api_key"),
    "PERMISSION_DENIED": ErrorRow(403, PERMISSION, "insufficient_scope"),
    "UNSUPPORTED": ErrorRow(400, INVALID_REQUEST, "unsupported_parameter"),
    "INTERNAL": ErrorRow(500, SERVER, "internal_error"),
    "BAD_LOGITS": ErrorRow(500, SERVER, "internal_error"),
    "NO_VALID_TOKEN": ErrorRow(400, INVALID_REQUEST, "invalid_value"),
    "NAN_LOGITS": ErrorRow(500, SERVER, "internal_error"),
    "GRAMMAR_DESYNC": ErrorRow(500, SERVER, "internal_error"),
    # Reasons that only the gateway raises.
    "INVALID_JSON": ErrorRow(400, INVALID_REQUEST, "invalid_json"),
    "UNKNOWN_ROUTE": ErrorRow(404, INVALID_REQUEST, "not_found"),
    "METHOD_NOT_ALLOWED": ErrorRow(405, INVALID_REQUEST, "method_not_allowed"),
    "UNSUPPORTED_MEDIA_TYPE": ErrorRow(415, INVALID_REQUEST, "unsupported_media_type"),
    "HEADERS_TOO_LARGE": ErrorRow(431, INVALID_REQUEST, "request_too_large"),
    "IDEMPOTENCY_MISMATCH": ErrorRow(409, CONFLICT, "idempotency_mismatch", retry=False),
    "STORE_UNAVAILABLE": ErrorRow(503, SERVER, "no_backend"),
}

_DEFAULT_RETRY_SECONDS = 1.0
_WAIT_STATUSES = (429, 503)
_NOT_STARTED = (
    *("BOOTING", "DRAINING", "NO_BACKEND", "BOOT_FAILED", "ASLEEP", "STORE_UNAVAILABLE"),
)
"""Refusals before any work, which the edge may retry at another replica."""


class ErrorObject(msgspec.Struct):
    """The object under ``error``."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """The body of every failed request."""

    error: ErrorObject


def row_of(error: AntiphonError) -> ErrorRow:
    """The table row of an error; an unknown reason counts as INTERNAL."""
    return ERROR_TABLE.get(error.reason, ERROR_TABLE["INTERNAL"])


def error_object(error: AntiphonError, route: str = "") -> ErrorObject:
    """The error as clients see it.

    Args:
        error: what happened.
        route: path template of the request's route, which names some fields.
    """
    row = row_of(error)
    field, message = error.field, error.message
    param = request_param(field, route)
    if field and message.startswith(field):
        message = param + message.removeprefix(field)
    if param:
        param += pointer_path(error.metadata.get("pointer", ""))
    return ErrorObject(message, row.type, param or None, row.code)


def error_body(error: AntiphonError, route: str = "") -> bytes:
    """The JSON body of a failed request; see ``error_object``."""
    return msgspec.json.encode(ErrorBody(error_object(error, route)))


def error_headers(error: AntiphonError) -> list[tuple[bytes, bytes]]:
    """Retry headers: 429 and 503 always say when to come back, unless a retry cannot help."""
    row = row_of(error)
    headers: list[tuple[bytes, bytes]] = []
    if row.retry is not None:
        headers.append((b"x-should-retry", b"true" if row.retry else b"false"))
    if row.status in _WAIT_STATUSES and row.retry is not False:
        wait = error.retry_after if error.retry_after is not None else _DEFAULT_RETRY_SECONDS
        headers.append((b"retry-after", str(math.ceil(wait)).encode()))
        headers.append((b"retry-after-ms", str(math.ceil(wait * 1000)).encode()))
    if error.reason in _NOT_STARTED:
        headers.append((b"x-antiphon-not-started", b"1"))
    return headers


def internal_error(request_id: str) -> Internal:
    """What a client learns of an unexpected exception: where to look, no more."""
    return Internal(f"internal error; the log has it under request id {request_id}")
