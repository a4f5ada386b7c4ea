"""Figures from hand-made records."""

from __future__ import annotations

import pytest

from bench.load.record import Ended, Record, RequestFailed
from bench.load.summary import Objectives, percentile, spread, summarise
from bench.load.workload import Job


def record(
    arrivals: list[float],
    pieces: list[int],
    *,
    sent: float = 0.0,
    outcome: str = "completed",
    output: int | None = None,
    batch: bool = False,
) -> Record:
    job = Job(0, (1, 2, 3), sum(pieces), batch=batch)
    made = Record(job, sent=sent, due=sent - 0.001)
    made.arrivals, made.pieces, made.streamed_tokens = arrivals, pieces, sum(pieces)
    made.outcome = outcome  # type: ignore[assignment]
    made.done = arrivals[-1] if arrivals else sent
    if outcome == "completed":
        made.ended = Ended(prompt_tokens=3, cached_tokens=0, output_tokens=output)
    return made


def test_percentiles_are_linear_between_ranks():
    assert percentile([10.0], 0.99) == 10.0
    assert percentile([0.0, 10.0], 0.5) == 5.0
    assert percentile(list(range(101)), 0.99) == 99.0
    assert spread([]) is None
    found = spread([4.0, 1.0, 3.0, 2.0])
    assert found == pytest.approx(
        {"count": 4, "mean": 2.5, "p50": 2.5, "p90": 3.7, "p99": 3.97, "max": 4.0}
    )


def test_times_of_one_request():
    made = record([0.5, 0.6, 0.8], [1, 1, 1])
    assert made.ttft == 0.5
    assert made.tpot == pytest.approx(0.15)
    assert made.gaps == pytest.approx([0.1, 0.2])


def test_tokens_that_came_together_with_the_first_are_no_later_tokens():
    assert record([1.0, 2.0], [4, 2]).tpot == pytest.approx(0.5)


def test_the_servers_total_governs_over_counted_pieces():
    made = record([1.0, 2.0], [1, 1], output=11)
    assert made.output_tokens == 11
    assert made.tpot == pytest.approx(0.1)


def test_one_piece_has_no_time_per_token():
    assert record([1.0], [5]).tpot is None


def test_a_run_adds_up():
    refused = record([], [], outcome="failed", sent=0.5)
    refused.failure = RequestFailed("QUEUE_FULL", "full", "RESOURCE_EXHAUSTED", 2.0)
    unasked = record([], [], outcome="failed", sent=0.6)
    unasked.failure = RequestFailed("QUEUE_FULL", "full", "RESOURCE_EXHAUSTED")
    records = [
        record([0.1, 0.2, 0.3, 0.4], [1] * 4),
        record([1.0, 2.0], [2, 2], sent=0.5),
        record([0.2], [1], outcome="cancelled"),
        record([0.3], [1], outcome="lost"),
        refused,
        unasked,
    ]
    found = summarise(records, Objectives(ttft_ms=200))
    assert found["requests"] == {"sent": 6, "completed": 2, "cancelled": 1, "failed": 2, "lost": 1}
    assert [item["tokens"] for item in found["lost"]] == [1]
    assert found["errors"]["QUEUE_FULL"] == {
        "count": 2,
        "statuses": ["RESOURCE_EXHAUSTED"],
        "with_retry": 1,
        "example": "full",
    }
    assert found["window_s"] == 2.0
    assert found["rates"]["requests_per_s"] == 1.0
    assert found["rates"]["output_tokens_per_s"] == 5.0
    assert found["ttft_ms"]["p50"] == pytest.approx(300)
    assert found["itl_ms"]["count"] == 4
    assert found["goodput"]["requests"] == 1
    assert found["goodput"]["share"] == pytest.approx(1 / 5)
    assert found["tokens"]["with_usage"] == 0
    assert found["generator_late_ms"]["max"] == pytest.approx(1.0)
    assert found["classes"] == {}


def test_each_objective_can_spoil_a_request():
    made = record([0.1, 0.5], [1, 4])
    assert Objectives(100, 100, 500).kept(made)
    assert not Objectives(ttft_ms=99).kept(made)
    assert not Objectives(tpot_ms=99).kept(made)
    assert not Objectives(e2e_ms=499).kept(made)
    assert not Objectives().kept(record([0.1], [1], outcome="lost"))


def test_classes_are_told_apart():
    found = summarise([record([0.1], [1]), record([0.9], [1], batch=True)], Objectives())
    assert found["classes"]["interactive"]["ttft_ms"]["p50"] == pytest.approx(100)
    assert found["classes"]["batch"]["ttft_ms"]["p50"] == pytest.approx(900)
