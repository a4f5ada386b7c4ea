"""Domain errors to ``google.rpc.Status`` and back."""

from __future__ import annotations

from math import ceil

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from antiphon_core.errors import (
    ERROR_TYPES,
    AntiphonError,
    Internal,
    InvalidArgument,
    ResourceExhausted,
)

DOMAIN = "antiphon"
"""ErrorInfo.domain of every error of the suite."""

_NANOS = 1_000_000_000
_OTHER_CODES: dict[grpc.StatusCode, type[AntiphonError]] = {
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgument,
    grpc.StatusCode.UNKNOWN: Internal,
    grpc.StatusCode.DATA_LOSS: Internal,
}


def to_status(error: AntiphonError) -> Status:
    """The status of a domain error, with ErrorInfo and, where a retry can help, RetryInfo."""
    status = Status(code=error.code.value[0], message=error.message)
    status.details.append(
        _pack(ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata))
    )
    if error.retry_after is not None:
        nanos = max(0, ceil(error.retry_after * _NANOS))
        delay = Duration(seconds=nanos // _NANOS, nanos=nanos % _NANOS)
        status.details.append(_pack(RetryInfo(retry_delay=delay)))
    return status


def from_status(status: Status) -> AntiphonError:
    """The domain error of a status; the reason is the type's default without our ErrorInfo."""
    reason = ""
    metadata: dict[str, str] = {}
    retry_after: float | None = None
    for detail in status.details:
        info = ErrorInfo()
        retry = RetryInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            reason = info.reason
            metadata = dict(info.metadata)
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / _NANOS
    return _typed(_code(status.code), status.message, reason, metadata, retry_after)


def from_rpc_error(error: grpc.aio.AioRpcError) -> AntiphonError:
    """The domain error of a failed call.

    A failure below the application (no connection, reset, a message above the limit) has no
    ErrorInfo; its code alone chooses the type.
    """
    try:
        status = rpc_status.from_call(error)  # pyright: ignore[reportArgumentType]
    except ValueError:
        status = None  # The rich status contradicts the plain one, which then governs.
    if status is not None:
        return from_status(status)
    return _typed(error.code(), error.details() or error.code().name, "", {}, None)


def _typed(
    code: grpc.StatusCode,
    message: str,
    reason: str,
    metadata: dict[str, str],
    retry_after: float | None,
) -> AntiphonError:
    error_type = ERROR_TYPES.get(code) or _OTHER_CODES.get(code, Internal)
    if error_type is ResourceExhausted and not reason and "larger than max" in message:
        reason = "TOO_LARGE"
    return error_type(message, reason=reason, metadata=metadata, retry_after=retry_after)


def _code(number: int) -> grpc.StatusCode:
    for code in grpc.StatusCode:
        if code.value[0] == number:
            return code
    return grpc.StatusCode.UNKNOWN


def _pack(message: ErrorInfo | RetryInfo) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
