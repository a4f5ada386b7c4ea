"""Joins the replicas' metrics into one OpenMetrics document, labelled by service and replica."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from antiphon_core.logs import get_logger
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

log = get_logger("admin.metrics")


class _Merged(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def merge(documents: Iterable[tuple[str, str, bytes]]) -> bytes:
    """One document from (service, replica, OpenMetrics text) of each replica.

    A family that several replicas have appears once, with all their samples. A text that is
    empty (the replica does not answer) or malformed adds nothing, and its ``antiphon_up`` is 0.
    """
    families: dict[str, Metric] = {}
    up = Metric("antiphon_up", "Whether the replica's metrics could be read", "gauge")
    for service, replica, text in documents:
        parsed = _parse(replica, text)
        up.add_sample("antiphon_up", {"service": service, "replica": replica}, float(bool(parsed)))
        for metric in parsed:
            family = families.setdefault(
                metric.name, Metric(metric.name, metric.documentation, metric.type, metric.unit)
            )
            family.samples.extend(_labelled(metric.samples, service, replica))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged([up, *families.values()]))
    return generate_latest(registry)


def _parse(replica: str, text: bytes) -> list[Metric]:
    try:
        return list(text_string_to_metric_families(text.decode())) if text else []
    except ValueError as error:
        log.warning("metrics_malformed", replica=replica, error=str(error))
        return []


def _labelled(samples: Iterable[Sample], service: str, replica: str) -> Iterator[Sample]:
    for sample in samples:
        labels = {**sample.labels, "service": service, "replica": replica}
        yield sample._replace(labels=labels)
