"""From the reasons that the engine gives to typed errors."""

from __future__ import annotations

from antiphon_core.errors import (
    AlreadyExists,
    AntiphonError,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)

from antiphon_llm.messages import Done, Embedding, Finish

_TYPES: dict[str, type[AntiphonError]] = {
    **dict.fromkeys(
        (
            *("INVALID_VALUE", "UNSUPPORTED_OPTION", "CONTEXT_LENGTH_EXCEEDED", "EMPTY_PROMPT"),
            *("NO_VALID_TOKEN", "INVALID_SCHEMA", "TOO_LARGE"),
        ),
        InvalidArgument,
    ),
    **dict.fromkeys(("QUEUE_FULL", "KV_FULL", "MEMORY_PRESSURE", "SLOTS_FULL"), ResourceExhausted),
    **dict.fromkeys(("WORKER_DIED", "OVERLOADED", "DRAINING", "ASLEEP", "NO_BACKEND"), Unavailable),
    **dict.fromkeys(("WRONG_STATE", "IN_USE"), FailedPrecondition),
    "ALREADY_EXISTS": AlreadyExists,
    "ADAPTER_NOT_FOUND": NotFound,
    "DEADLINE": DeadlineExceeded,
    "CANCELLED": Cancelled,
}

WORKER_RETRY_SECONDS = 2.0
"""A restarted engine is usually back by then."""


def engine_error(
    message: str,
    reason: str,
    retry_after: float = 0.0,
    *,
    limit: float | None = None,
    observed: float | None = None,
    field: str = "",
) -> AntiphonError:
    """The typed error of a refusal or failure that the engine reported.

    Args:
        message: for people.
        reason: an ErrorReason name without prefix; an unknown or empty one is INTERNAL.
        retry_after: seconds; 0 where a retry cannot help.
        limit: the bound that refused the request, where it was one.
        observed: what was found instead.
        field: path of the request's field to blame.
    """
    error_type = _TYPES.get(reason, Internal)
    bound = {"limit": limit, "observed": observed}
    return error_type(
        message or f"the engine failed ({reason})",
        reason=reason or "INTERNAL",
        field=field,
        metadata={name: f"{value:g}" for name, value in bound.items() if value is not None},
        retry_after=retry_after or None,
    )


def error_of(answer: Finish | Embedding | Done, *, constraint: str = "") -> AntiphonError:
    """The typed error of a terminal that reports one.

    Args:
        answer: reports an error.
        constraint: path of the field that bounds the output's form, which is to blame where
            that does not compile.
    """
    if isinstance(answer, Done):
        return engine_error(
            answer.error,
            answer.error_reason,
            limit=answer.limit,
            observed=answer.observed,
            field=answer.field,
        )
    return engine_error(
        answer.error,
        answer.error_reason,
        answer.retry_after,
        limit=answer.limit,
        observed=answer.observed,
        field=constraint if answer.error_reason == "INVALID_SCHEMA" else "",
    )


def deadline_error() -> DeadlineExceeded:
    """The request's time ran out before it was done."""
    return DeadlineExceeded("the request's deadline passed before it was done")


def worker_died(how: str) -> Unavailable:
    """The engine process ended under the request."""
    return Unavailable(
        f"the engine process died ({how}); work may have been done",
        reason="WORKER_DIED",
        retry_after=WORKER_RETRY_SECONDS,
    )
