"""The request context as RPC metadata."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from antiphon_core.errors import InvalidArgument
from antiphon_core.request_context import RequestContext, current, new_request_id, use_context
from antiphon_core.telemetry import continue_trace

__all__ = [
    "ALL_TENANTS",
    "PRIORITIES",
    "RequestContext",
    "current",
    "from_metadata",
    "new_request_id",
    "to_metadata",
    "use_context",
]

REQUEST_ID = "x-request-id"
TRACEPARENT = "traceparent"
TENANT = "x-antiphon-tenant"
PRIORITY = "x-antiphon-priority"
ALL_TENANTS = "x-antiphon-all-tenants"
"""Asks a list for what any tenant may use: for services, and taken from clients by the edge."""

PRIORITIES = ("interactive", "batch")

_REQUEST_ID_FORM = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TENANT_FORM = re.compile(r"[A-Za-z0-9._-]{1,64}")


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
