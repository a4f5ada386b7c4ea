"""Who asks, under which ids, until when: carried in a context variable and as RPC metadata."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from antiphon_core.errors import InvalidArgument
from antiphon_core.telemetry import continue_trace, parse_traceparent

REQUEST_ID = "x-request-id"
TRACEPARENT = "traceparent"
TENANT = "x-antiphon-tenant"
PRIORITY = "x-antiphon-priority"

PRIORITIES = ("interactive", "batch")

_REQUEST_ID_FORM = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TENANT_FORM = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The request that the current task works for. Empty strings where unknown."""

    request_id: str = ""
    traceparent: str = ""
    """This process's span; sent on as the parent of the next one."""
    tenant: str = ""
    priority: str = "interactive"
    deadline: float | None = None
    """time.time() seconds; None without a deadline."""

    @property
    def trace_id(self) -> str:
        """32 hex digits, or empty."""
        parsed = parse_traceparent(self.traceparent) if self.traceparent else None
        return parsed.trace_id if parsed else ""

    def remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.time())


_current: ContextVar[RequestContext] = ContextVar("request_context", default=RequestContext())  # noqa: B039


def current() -> RequestContext:
    """The current request's context; an empty one outside a request."""
    return _current.get()


@contextmanager
def use_context(context: RequestContext) -> Iterator[RequestContext]:
    """Makes the context current inside the block."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def new_request_id() -> str:
    """32 hex digits."""
    return uuid.uuid4().hex


def from_metadata(
    metadata: Iterable[tuple[str, str | bytes]], time_remaining: float | None
) -> RequestContext:
    """Builds the context of a received call.

    Args:
        metadata: the call's metadata; a malformed request id is replaced by a minted one.
        time_remaining: seconds to the call's deadline; None without one.

    Raises:
        InvalidArgument: malformed tenant or unknown priority.
    """
    values = {key: value for key, value in metadata if isinstance(value, str)}
    request_id = values.get(REQUEST_ID, "")
    if not _REQUEST_ID_FORM.fullmatch(request_id):
        request_id = new_request_id()
    tenant = values.get(TENANT, "")
    if tenant and not _TENANT_FORM.fullmatch(tenant):
        raise InvalidArgument(f"metadata {TENANT} must match {_TENANT_FORM.pattern}", field=TENANT)
    priority = values.get(PRIORITY, PRIORITIES[0])
    if priority not in PRIORITIES:
        raise InvalidArgument(
            f"metadata {PRIORITY} must be one of {', '.join(PRIORITIES)}",
            field=PRIORITY,
            allowed=PRIORITIES,
        )
    return RequestContext(
        request_id=request_id,
        traceparent=str(continue_trace(values.get(TRACEPARENT))),
        tenant=tenant,
        priority=priority,
        deadline=None if time_remaining is None else time.time() + time_remaining,
    )


def to_metadata(context: RequestContext) -> tuple[tuple[str, str], ...]:
    """The metadata that an outgoing call carries for this context."""
    pairs = [(REQUEST_ID, context.request_id or new_request_id())]
    if context.traceparent:
        pairs.append((TRACEPARENT, context.traceparent))
    if context.tenant:
        pairs.append((TENANT, context.tenant))
    if context.priority != PRIORITIES[0]:
        pairs.append((PRIORITY, context.priority))
    return tuple(pairs)
