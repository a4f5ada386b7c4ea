"""Errors of the realtime protocol: what a client did wrong, and what a backend failed at."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_core.errors import AntiphonError

REQUEST_ERROR = "invalid_request_error"


class ProtocolError(Exception):
    """A client event that cannot be carried out; becomes an ``error`` event.

    Args:
        message: one sentence that names the field and what is allowed.
        code: the wire's machine-readable code.
        param: path of the field to blame, or empty.
        kind: the wire's error type.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "invalid_value",
        param: str = "",
        kind: str = REQUEST_ERROR,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.kind = kind


@dataclass(frozen=True, slots=True)
class BackendFailure:
    """Why a backend could not finish its part; ends a response as ``failed``."""

    kind: str
    code: str
    message: str


_CODES: dict[str, tuple[str, str]] = {
    "CONTEXT_LENGTH_EXCEEDED": (REQUEST_ERROR, "context_length_exceeded"),
    "INVALID_VALUE": (REQUEST_ERROR, "invalid_value"),
    "MISSING_FIELD": (REQUEST_ERROR, "missing_required_parameter"),
    "UNSUPPORTED_OPTION": (REQUEST_ERROR, "unsupported_parameter"),
    "UNSUPPORTED_MODALITY": (REQUEST_ERROR, "unsupported_modality"),
    "EMPTY_PROMPT": (REQUEST_ERROR, "empty_prompt"),
    "INVALID_AUDIO": (REQUEST_ERROR, "invalid_audio"),
    "INVALID_IMAGE": (REQUEST_ERROR, "invalid_image"),
    "INVALID_SCHEMA": (REQUEST_ERROR, "invalid_schema"),
    "TEMPLATE_ERROR": (REQUEST_ERROR, "template_error"),
    "MODEL_NOT_FOUND": (REQUEST_ERROR, "model_not_found"),
    "VOICE_NOT_FOUND": (REQUEST_ERROR, "voice_not_found"),
    "UNSUPPORTED": (REQUEST_ERROR, "unsupported_parameter"),
    "RATE_LIMITED": ("rate_limit_error", "rate_limit_exceeded"),
    "QUOTA_SPENT": ("insufficient_quota", "insufficient_quota"),
    "QUEUE_FULL": ("server_error", "capacity_exceeded"),
    "SLOTS_FULL": ("server_error", "capacity_exceeded"),
    "KV_FULL": ("server_error", "capacity_exceeded"),
    "MEMORY_PRESSURE": ("server_error", "capacity_exceeded"),
    "BOOTING": ("server_error", "starting"),
    "DRAINING": ("server_error", "draining"),
    "NO_BACKEND": ("server_error", "no_backend"),
    "OVERLOADED": ("server_error", "overloaded"),
    "DEADLINE": ("server_error", "deadline_exceeded"),
}


def failure_of_reason(reason: str, message: str) -> BackendFailure:
    """The wire form of a backend's ErrorReason name."""
    kind, code = _CODES.get(reason, ("server_error", "internal_error"))
    return BackendFailure(kind, code, message)


def failure_of(error: AntiphonError) -> BackendFailure:
    """The wire form of a typed backend error."""
    return failure_of_reason(error.reason, error.message)
