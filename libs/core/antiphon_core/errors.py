"""Typed errors of the domain code.

Domain code raises one of these; the server interceptor turns it into a
``google.rpc.Status`` and the client helpers turn a status back into the same type. ``reason``
is a name of ``antiphon.common.v1.ErrorReason`` without its prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import grpc


class AntiphonError(Exception):
    """An error with a gRPC code, a machine-readable reason and metadata.

    Args:
        message: one sentence for people; names what is wrong and how to put it right.
        reason: an ErrorReason name without prefix; the class's default when empty.
        field: path of the field to blame, such as ``sampling.temperature``.
        allowed: the allowed values, where they are few.
        metadata: further facts, such as ``limit`` and ``observed``.
        retry_after: seconds after which the same request can succeed; None when a retry
            cannot help.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    default_reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        field: str = "",
        allowed: Sequence[str] = (),
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.metadata: dict[str, str] = dict(metadata or {})
        if field:
            self.metadata["field"] = field
        if allowed:
            self.metadata["allowed"] = ", ".join(allowed)
        self.retry_after = retry_after

    @property
    def field(self) -> str:
        """Path of the field to blame, or an empty string."""
        return self.metadata.get("field", "")

    def __str__(self) -> str:
        return self.message


class InvalidArgument(AntiphonError):
    """The request is wrong whatever the state of the service."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    default_reason = "INVALID_VALUE"


class NotFound(AntiphonError):
    """No resource of this name is visible to the caller."""

    code = grpc.StatusCode.NOT_FOUND
    default_reason = "RESOURCE_NOT_FOUND"


class AlreadyExists(AntiphonError):
    """The id is taken."""

    code = grpc.StatusCode.ALREADY_EXISTS
    default_reason = "ALREADY_EXISTS"


class FailedPrecondition(AntiphonError):
    """The operation does not apply in the present state."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    default_reason = "WRONG_STATE"


class Aborted(AntiphonError):
    """Another operation holds the resource."""

    code = grpc.StatusCode.ABORTED
    default_reason = "CONFLICT"


class ResourceExhausted(AntiphonError):
    """A bound was reached: a queue, slots, memory, a rate or a quota."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    default_reason = "QUEUE_FULL"


class Unavailable(AntiphonError):
    """The service cannot work now; another replica or a later try may."""

    code = grpc.StatusCode.UNAVAILABLE
    default_reason = "NO_BACKEND"


class DeadlineExceeded(AntiphonError):
    """The deadline passed before the work was done."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    default_reason = "DEADLINE"


class Cancelled(AntiphonError):
    """The caller ended the call."""

    code = grpc.StatusCode.CANCELLED
    default_reason = "CANCELLED"


class Unauthenticated(AntiphonError):
    """No or unknown credentials."""

    code = grpc.StatusCode.UNAUTHENTICATED
    default_reason = "UNAUTHENTICATED"


class PermissionDenied(AntiphonError):
    """The credentials lack the needed scope."""

    code = grpc.StatusCode.PERMISSION_DENIED
    default_reason = "PERMISSION_DENIED"


class Unimplemented(AntiphonError):
    """The method or feature is not part of this build."""

    code = grpc.StatusCode.UNIMPLEMENTED
    default_reason = "UNSUPPORTED"


class Internal(AntiphonError):
    """A defect of the service."""

    code = grpc.StatusCode.INTERNAL
    default_reason = "INTERNAL"


ERROR_TYPES: Mapping[grpc.StatusCode, type[AntiphonError]] = {
    error_type.code: error_type
    for error_type in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        Aborted,
        ResourceExhausted,
        Unavailable,
        DeadlineExceeded,
        Cancelled,
        Unauthenticated,
        PermissionDenied,
        Unimplemented,
        Internal,
    )
}
"""The error type of each status code that has one."""
