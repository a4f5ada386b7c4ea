"""The process's metrics: one prometheus-client registry, names prefixed with ``antiphon_``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest

from antiphon_core.logs import get_logger

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""Content type of ``render``."""

TPOT_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2, 0.4,
    0.8, 1.5, 2.5,
)  # fmt: skip
"""Seconds per output token."""
FIRST_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.5, 5.0,
    10.0, 20.0,
)  # fmt: skip
"""Seconds to the first token or first audio."""
STEP_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0,
)  # fmt: skip
"""Seconds of one engine step."""
DURATION_BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
"""Seconds of a whole call or request."""

_PREFIX = "antiphon"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

MetricType = TypeVar("MetricType", bound=MetricWrapperBase)

log = get_logger("metrics")

disable_created_metrics()  # they would double the number of series


class Metrics:
    """A registry whose factories return the existing metric when the name is known."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._lock = threading.Lock()
        self._known: dict[str, MetricWrapperBase] = {}
        self._fallbacks_seen: set[tuple[str, str]] = set()

    def counter(self, name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
        """A counter; the name ends in ``_total``."""
        if not name.endswith("_total"):
            raise ValueError(f"the counter {name!r} must end in _total")
        return self._get(Counter, name, doc, labels)

    def gauge(self, name: str, doc: str, labels: Sequence[str] = ()) -> Gauge:
        """A gauge; the unit stands in the name."""
        return self._get(Gauge, name, doc, labels)

    def histogram(
        self,
        name: str,
        doc: str,
        labels: Sequence[str] = (),
        buckets: Sequence[float] = DURATION_BUCKETS,
    ) -> Histogram:
        """A histogram with the given upper bounds.

        None of them is negative: such a histogram has no sum, and OpenMetrics' readers then refuse
        everything that the process says.
        """
        if any(bound < 0 for bound in buckets):
            raise ValueError(f"the histogram {name!r} has a negative bucket")
        return self._get(Histogram, name, doc, labels, buckets=tuple(buckets))

    def fallback(self, component: str, reason: str) -> None:
        """Counts a fallback in path_total and logs its first occurrence.

        Both arguments are from closed sets: they become labels.
        """
        paths = self.counter(
            "path_total", "Optional paths taken or refused", ("path", "result", "reason")
        )
        paths.labels(component, "fallback", reason).inc()
        with self._lock:
            first = (component, reason) not in self._fallbacks_seen
            self._fallbacks_seen.add((component, reason))
        if first:
            log.warning("fallback_taken", component=component, reason=reason)

    def render(self) -> bytes:
        """All metrics as OpenMetrics text, exemplars included."""
        return generate_latest(self._registry)

    def counters(self) -> dict[str, float]:
        """Every counter by its sample name with labels, as OpenMetrics spells them."""
        return {
            _spell(sample.name, sample.labels): sample.value
            for family in self._registry.collect()
            if family.type == "counter"
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """One sample's value by its full name without prefix; None when absent."""
        return self._registry.get_sample_value(f"{_PREFIX}_{name}", labels)

    def _get(
        self, kind: type[MetricType], name: str, doc: str, labels: Sequence[str], **options: Any
    ) -> MetricType:
        with self._lock:
            known = self._known.get(name)
            if known is None:
                known = kind(
                    name, doc, tuple(labels), namespace=_PREFIX, registry=self._registry, **options
                )
                self._known[name] = known
        if not isinstance(known, kind):
            raise ValueError(f"metric {name!r} exists as another kind")
        if known._labelnames != tuple(labels):
            raise ValueError(f"metric {name!r} exists with the labels {known._labelnames}")
        return known


def _spell(name: str, labels: dict[str, str]) -> str:
    if not labels:
        return name
    pairs = (f'{key}="{text.translate(_ESCAPES)}"' for key, text in sorted(labels.items()))
    return f"{name}{{{','.join(pairs)}}}"


_process_metrics = Metrics()

counter = _process_metrics.counter
gauge = _process_metrics.gauge
histogram = _process_metrics.histogram
fallback = _process_metrics.fallback
render = _process_metrics.render
counters = _process_metrics.counters
value = _process_metrics.value
