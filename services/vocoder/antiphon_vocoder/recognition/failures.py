"""Typed errors across the process boundary."""

from __future__ import annotations

import grpc
from antiphon_core.errors import ERROR_TYPES, AntiphonError, Internal

from antiphon_vocoder.recognition.messages import Failure


def failure_of(error: AntiphonError) -> Failure:
    """The message of an error."""
    return Failure(error.code.name, error.reason, error.message, dict(error.metadata))


def error_of(failure: Failure) -> AntiphonError:
    """The error of a message."""
    error_type = ERROR_TYPES.get(grpc.StatusCode[failure.code], Internal)
    return error_type(failure.message, reason=failure.reason, metadata=failure.metadata)
