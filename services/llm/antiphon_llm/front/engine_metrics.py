"""Metrics of the engine, kept by the front from what the engine reports."""

from __future__ import annotations

import time

from antiphon_core import metrics

from antiphon_llm.messages import Gauges, Hello

_INTER_TOKEN_LIMIT = 5.0
"""Seconds; a longer pause between steps is idleness, not a slow token."""


class EngineMetrics:
    """What a step costs here is paid per token: gauges are read when somebody asks for them.

    Label values are closed sets.
    """

    def __init__(self) -> None:
        seconds = metrics.histogram(
            "step_seconds", "Duration of engine steps", ("kind",), buckets=metrics.STEP_BUCKETS
        )
        self._step_seconds = {kind: seconds.labels(kind) for kind in ("decode", "prefill")}
        self._kv = (0, 0, 0)
        self._parked = 0
        self._last_rows = 0
        self._silence = 0.0
        rows = metrics.gauge("step_rows", "Rows that drew a token in the last step")
        rows.set_function(lambda: self._last_rows)
        entries = metrics.gauge("kv_entries", "KV entries", ("state",))
        entries.labels("used").set_function(lambda: self._kv[0])
        entries.labels("cached").set_function(lambda: self._kv[1])
        entries.labels("free").set_function(lambda: self._kv[2] - self._kv[1] - self._kv[0])
        parked = metrics.gauge("parked_sequences", "Batch sequences whose KV is in host memory")
        parked.set_function(lambda: self._parked)
        prefix = metrics.counter(
            "prefix_tokens_total",
            "Prompt tokens found in the prefix cache or computed",
            ("result",),
        )
        self._prefix = {result: prefix.labels(result) for result in ("hit", "miss")}
        self._evictions = metrics.counter(
            "prefix_evictions_total", "KV entries that the prefix cache gave up", ("tier",)
        )
        self._adapters = metrics.gauge("adapters", "Adapters", ("state",)).labels("loaded")
        self._memory = metrics.gauge("memory_bytes", "Memory", ("group", "tenure"))
        tick_age = metrics.gauge(
            "loop_tick_age_seconds", "Time since the engine's last sign of life"
        )
        tick_age.set_function(lambda: self._silence)
        self._inter_token = metrics.histogram(
            "inter_token_seconds",
            "Time between two engine steps that drew tokens, one sample a step",
            buckets=metrics.TPOT_BUCKETS,
        )
        self._restarts = metrics.counter("worker_deaths_total", "Deaths of the engine process")
        self._paths = metrics.counter(
            "path_total", "Optional paths taken or refused", ("path", "result", "reason")
        )
        self._preemptions = metrics.counter("preemptions_total", "Sequences put back to the queue")
        self._last_step = 0.0

    def hello(self, hello: Hello) -> None:
        """A new engine is up."""
        for owner, size in hello.memory.items():
            tenure = "resident" if owner == "weights" else "reserved"
            self._memory.labels(owner, tenure).set(size)

    def died(self) -> None:
        """The engine process ended."""
        self._restarts.inc()
        self._last_step = 0.0

    def tick_age(self, seconds: float) -> None:
        """Silence of the engine."""
        self._silence = seconds

    def step(self, rows: int) -> None:
        """One step's outputs arrived."""
        if not rows:
            return
        now = time.monotonic()
        if now - self._last_step < _INTER_TOKEN_LIMIT:
            self._inter_token.observe(now - self._last_step)
        self._last_step = now
        self._last_rows = rows

    def gauges(self, now: Gauges, before: Gauges | None) -> None:
        """A report; ``before`` is the previous one of the same engine process."""
        self._kv = now.kv_used, now.kv_cached, now.kv_total
        self._parked = now.parked
        if before is None or now.adapters != before.adapters:
            self._adapters.set(now.adapters)
            self._memory.labels("adapters", "resident").set(now.adapter_bytes)
        self._silence = now.tick_age
        if now.steps > (before.steps if before else 0):
            prefilled = now.prefill_tokens > (before.prefill_tokens if before else 0)
            self._step_seconds["prefill" if prefilled else "decode"].observe(now.step_seconds)
        if now.rss_bytes != (before.rss_bytes if before else 0):
            self._memory.labels("engine", "resident").set(now.rss_bytes)
        self._prefix["hit"].inc(now.cached_tokens - (before.cached_tokens if before else 0))
        self._prefix["miss"].inc(now.prefill_tokens - (before.prefill_tokens if before else 0))
        if now.fallbacks:
            self._count_fallbacks(now.fallbacks, before.fallbacks if before else {})
        if now.counters != (before.counters if before else {}):
            self._count_paths(now.counters, before.counters if before else {})

    def _count_fallbacks(self, now: dict[str, int], before: dict[str, int]) -> None:
        for name, count in now.items():
            new = count - before.get(name, 0)
            if new <= 0:
                continue
            if name == "preempted":
                self._preemptions.inc(new)
            else:
                self._paths.labels(name, "fallback", "").inc(new)

    def _count_paths(self, now: dict[str, int], before: dict[str, int]) -> None:
        """Counters are named ``path: result`` or ``path: result, reason``."""
        for name, count in now.items():
            new = count - before.get(name, 0)
            if new > 0 and name == "prefix cache: evicted":
                self._evictions.labels("device").inc(new)
            elif new > 0:
                path, _, outcome = name.partition(": ")
                result, _, reason = outcome.partition(", ")
                self._paths.labels(path, result, reason).inc(new)
