"""What the engine reports becomes metrics: states of the pool, paths, memory by owner."""

from __future__ import annotations

from typing import Any

from antiphon_core import metrics
from antiphon_llm.front.engine_metrics import EngineMetrics
from antiphon_llm.messages import Gauges, Hello


def report(**fields: Any) -> Gauges:
    values = {"at": 0.0, "waiting": 0, "running": 0, "kv_used": 0, "kv_total": 100, "steps": 0,
              "rows_total": 8, "prefill_tokens": 0, "decode_tokens": 0, "step_seconds": 0.0,
              **fields}  # fmt: skip
    return Gauges(**values)


def grown(before: dict[str, float | None], name: str, **labels: str) -> float:
    return (metrics.value(name, **labels) or 0.0) - (before.get(f"{name}{labels}") or 0.0)


def test_reports_of_one_engine() -> None:
    found = EngineMetrics()
    names = [
        ("prefix_tokens_total", {"result": "hit"}),
        ("prefix_tokens_total", {"result": "miss"}),
        ("prefix_evictions_total", {"tier": "device"}),
        ("path_total", {"path": "graph", "result": "eager", "reason": "above ladder"}),
        ("path_total", {"path": "graph", "result": "replay", "reason": ""}),
    ]
    before = {f"{name}{labels}": metrics.value(name, **labels) for name, labels in names}
    first = report(kv_used=10, kv_cached=30, cached_tokens=5, prefill_tokens=7, parked=2,
                   counters={"graph: replay": 3, "prefix cache: evicted": 4})  # fmt: skip
    second = report(kv_used=20, kv_cached=40, cached_tokens=6, prefill_tokens=9,
                    counters={"graph: replay": 5, "graph: eager, above ladder": 1,
                              "prefix cache: evicted": 4})  # fmt: skip
    found.gauges(first, None)
    assert metrics.value("parked_sequences") == 2
    found.gauges(second, first)
    growth = [grown(before, name, **labels) for name, labels in names]
    assert growth == [6, 9, 4, 1, 5]
    states = {
        state: metrics.value("kv_entries", state=state) for state in ("used", "cached", "free")
    }
    assert states == {"used": 20, "cached": 40, "free": 40}


def test_memory_by_owner() -> None:
    found = EngineMetrics()
    found.hello(
        Hello("Tiny", 96, 128, [95], 8, 16, 4, 500, 900, "cpu", "float32",
              memory={"weights": 500, "workspace": 70, "kv": 900})
    )  # fmt: skip
    assert metrics.value("memory_bytes", group="weights", tenure="resident") == 500
    assert metrics.value("memory_bytes", group="workspace", tenure="reserved") == 70
    assert metrics.value("memory_bytes", group="kv", tenure="reserved") == 900
