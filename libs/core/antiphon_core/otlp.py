"""Span export by OTLP; imported only when tracing is configured (the ``otlp`` extra)."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from antiphon_core import metrics


class CountingExporter(SpanExporter):
    """Passes spans on and counts those that the collector did not take."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._dropped = metrics.counter(
            "spans_dropped_total", "Spans that the collector did not take"
        )

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Called by the export thread."""
        outcome = self._exporter.export(spans)
        if outcome is not SpanExportResult.SUCCESS:
            self._dropped.inc(len(spans))
        return outcome

    def shutdown(self) -> None:
        """Ends retries."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Sends what is held."""
        return self._exporter.force_flush(timeout_millis)


def make_provider(
    service: str, endpoint: str, *, sample_ratio: float, boot_id: str
) -> TracerProvider:
    """A provider that exports in its own daemon thread over a bounded queue."""
    resource = Resource.create({"service.name": service, "service.instance.id": boot_id})
    provider = TracerProvider(
        resource=resource,
        sampler=ParentBasedTraceIdRatio(sample_ratio),
        # Its exit hook would wait for a collector that hangs.
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"))
    provider.add_span_processor(BatchSpanProcessor(CountingExporter(exporter)))
    return provider
