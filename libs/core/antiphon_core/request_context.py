"""The request that the current task works for, in a context variable.

Apart from ``rpc.context``, so that a worker process can log with it and import no gRPC.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from antiphon_core.telemetry import parse_traceparent


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, under which ids, until when. Empty strings where unknown."""

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


_NO_REQUEST = RequestContext()
_current: ContextVar[RequestContext] = ContextVar("request_context", default=_NO_REQUEST)


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


def lower_priority() -> None:
    """Makes the current request a batch one, until its ``use_context`` block ends."""
    _current.set(replace(_current.get(), priority="batch"))


def new_request_id() -> str:
    """32 hex digits."""
    return uuid.uuid4().hex
