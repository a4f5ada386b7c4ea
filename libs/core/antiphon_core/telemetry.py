"""W3C trace context, and spans that cost nothing until an exporter is configured."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01

_provider: TracerProvider | None = None
_tracer: Tracer | None = None


@dataclass(frozen=True)
class TraceParent:
    """A position in a distributed trace (https://www.w3.org/TR/trace-context/)."""

    trace_id: str
    """32 lower-case hex digits, not all zero."""
    span_id: str
    """16 lower-case hex digits, not all zero."""
    sampled: bool = True

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"

    def child(self) -> TraceParent:
        """A new span of the same trace."""
        return TraceParent(self.trace_id, secrets.token_hex(8), self.sampled)


def parse_traceparent(header: str) -> TraceParent | None:
    """Reads a traceparent header; None when it is not valid, as the standard asks."""
    match = _TRACEPARENT.fullmatch(header.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest):
        return None
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def new_traceparent(sampled: bool = True) -> TraceParent:
    """The root of a new trace."""
    return TraceParent(secrets.token_hex(16), secrets.token_hex(8), sampled)


def continue_trace(header: str | None) -> TraceParent:
    """A child of the caller's span, or a new trace where the header is absent or invalid."""
    parent = parse_traceparent(header) if header else None
    return parent.child() if parent else new_traceparent()


def configure_tracing(
    service: str, endpoint: str, *, sample_ratio: float = 0.1, boot_id: str = ""
) -> None:
    """Exports spans by OTLP over gRPC. Never called: no span is made at all.

    Export runs in its own thread over a bounded queue; a hung collector loses spans, counted
    in spans_dropped_total, and never blocks a request.

    Args:
        service: the resource's ``service.name``.
        endpoint: ``http://host:4317``.
        sample_ratio: share of new traces; a caller's decision is kept.
        boot_id: the resource's ``service.instance.id``.

    Raises:
        ModuleNotFoundError: antiphon-core was installed without its ``otlp`` extra.
    """
    global _provider, _tracer
    from antiphon_core.otlp import make_provider

    _provider = make_provider(service, endpoint, sample_ratio=sample_ratio, boot_id=boot_id)
    _tracer = _provider.get_tracer("antiphon")


def flush_tracing(timeout: float = 2.0) -> None:
    """Sends what is queued, for at most so many seconds; part of an orderly stop.

    The library's own flush does not keep its time limit when the collector hangs, so it runs
    in a daemon thread that an exit leaves behind.
    """
    if _provider is None:
        return
    flush = threading.Thread(target=_provider.force_flush, name="flush-spans", daemon=True)
    flush.start()
    flush.join(timeout)


@contextmanager
def span(
    name: str, traceparent: str = "", attributes: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """A span below ``traceparent``; yields the traceparent that the work inside should pass on.

    Without an exporter it yields its argument. Attributes never hold text of users.
    """
    if _tracer is None:
        yield traceparent
        return
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    propagator = TraceContextTextMapPropagator()
    parent = propagator.extract({"traceparent": traceparent} if traceparent else {})
    with _tracer.start_as_current_span(name, context=parent, attributes=attributes) as current:
        carrier: dict[str, str] = {}
        propagator.inject(carrier, set_span_in_context(current))
        yield carrier.get("traceparent", traceparent)
