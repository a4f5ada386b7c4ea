"""Errors of the realtime protocol: what a client did wrong, and what a backend failed at."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_core.errors import AntiphonError

from antiphon_gateway.openai.errors import ERROR_TABLE

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


def failure_of_reason(reason: str, message: str) -> BackendFailure:
    """The wire form of a backend's ErrorReason name."""
    row = ERROR_TABLE.get(reason, ERROR_TABLE["INTERNAL"])
    return BackendFailure(row.type, row.code, message)


def failure_of(error: AntiphonError) -> BackendFailure:
    """The wire form of a typed backend error."""
    return failure_of_reason(error.reason, error.message)
