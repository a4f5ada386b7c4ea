"""From the records of a run to its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.load.record import Record

PERCENTILES = (50, 90, 99)
LOST_SHOWN = 20


@dataclass(frozen=True)
class Objectives:
    """Service-level objectives in milliseconds; None asks nothing.

    A request is good when it completed and kept each one that is given: its time to first token,
    its mean time per output token, and its whole duration.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def kept(self, record: Record) -> bool:
        """Whether one request was good."""
        if record.outcome != "completed" or record.ttft is None:
            return False
        pairs = (
            (record.ttft, self.ttft_ms),
            (record.tpot or 0.0, self.tpot_ms),
            (record.done - record.sent, self.e2e_ms),
        )
        return all(limit is None or seconds * 1000 <= limit for seconds, limit in pairs)


def summarise(records: Sequence[Record], objectives: Objectives) -> dict[str, Any]:
    """The figures of a run; latencies are of completed requests, in milliseconds.

    Returns:
        ``requests`` by outcome, ``errors`` by reason, ``lost`` with the facts of the first that
        got no terminal; ``rates`` over the window from the first
        request sent to the last one ended; ``ttft_ms``, ``tpot_ms``, ``itl_ms`` (gaps between
        pieces as a reader sees them) and ``e2e_ms`` as mean, percentiles and largest;
        ``goodput`` under the objectives, its share of the requests whose client stayed;
        ``classes`` with the latencies of each class where there are two;
        ``generator_late_ms``, how far sending fell behind the plan.
    """
    done = [record for record in records if record.outcome == "completed"]
    window = (max(r.done for r in records) - min(r.sent for r in records)) if records else 0.0
    good = sum(map(objectives.kept, records))
    staying = sum(record.outcome != "cancelled" for record in records)
    output = sum(record.output_tokens for record in records)
    return {
        "requests": _outcomes(records),
        "errors": _errors(records),
        "lost": _lost(records),
        "finish_reasons": dict(Counter(record.finish_reason for record in done)),
        "tokens": _tokens(records),
        "window_s": window,
        "rates": {
            "requests_per_s": _rate(len(done), window),
            "output_tokens_per_s": _rate(output, window),
            "prompt_tokens_per_s": _rate(sum(len(r.job.prompt_ids) for r in done), window),
        },
        **latencies(done),
        "goodput": {
            "objectives": asdict(objectives),
            "requests": good,
            "share": good / staying if staying else 0.0,
            "requests_per_s": _rate(good, window),
        },
        "classes": _classes(done),
        "generator_late_ms": spread([(r.sent - r.due) * 1000 for r in records]),
    }


def latencies(records: Sequence[Record]) -> dict[str, Any]:
    """Spreads of the times of these requests."""
    gaps = [gap for record in records for gap in record.gaps]
    return {
        "ttft_ms": spread(_milliseconds(records, lambda record: record.ttft)),
        "tpot_ms": spread(_milliseconds(records, lambda record: record.tpot)),
        "itl_ms": spread([gap * 1000 for gap in gaps]),
        "e2e_ms": spread(_milliseconds(records, lambda record: record.done - record.sent)),
    }


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Count, mean, percentiles and largest; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    found: dict[str, float] = {"count": len(ordered), "mean": sum(ordered) / len(ordered)}
    for share in PERCENTILES:
        found[f"p{share}"] = percentile(ordered, share / 100)
    return found | {"max": ordered[-1]}


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two neighbours of rank ``share * (n - 1)``; ``ordered`` ascends."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _outcomes(records: Sequence[Record]) -> dict[str, int]:
    counts = Counter(record.outcome for record in records)
    names = ("completed", "cancelled", "failed", "lost")
    return {"sent": len(records), **{name: counts[name] for name in names}}


def _errors(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Failures by reason: how many, with which statuses, how many told when to retry."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        failure = record.failure
        if failure is None:
            continue
        row = found.setdefault(
            failure.reason,
            {"count": 0, "statuses": [], "with_retry": 0, "example": failure.message},
        )
        row["count"] += 1
        row["with_retry"] += failure.retry_after is not None
        if failure.status not in row["statuses"]:
            row["statuses"].append(failure.status)
    return found


def _lost(records: Sequence[Record]) -> list[dict[str, Any]]:
    """What is known of requests without a terminal."""
    return [
        {
            "index": record.job.index,
            "batch": record.job.batch,
            "deadline_s": record.job.deadline_s,
            "tokens": record.streamed_tokens,
            "waited_s": record.done - record.sent,
        }
        for record in records
        if record.outcome == "lost"
    ][:LOST_SHOWN]


def _tokens(records: Sequence[Record]) -> dict[str, Any]:
    """Totals, and how many requests' counts are the server's own."""
    ended = [record.ended for record in records if record.ended is not None]
    pieces = sum(len(record.pieces) for record in records)
    streamed = sum(record.streamed_tokens for record in records)
    return {
        "asked_prompt": sum(len(record.job.prompt_ids) for record in records),
        "prompt": sum(item.prompt_tokens or 0 for item in ended),
        "cached": sum(item.cached_tokens or 0 for item in ended),
        "output": sum(record.output_tokens for record in records),
        "with_usage": sum(item.output_tokens is not None for item in ended),
        "pieces": pieces,
        "tokens_per_piece": streamed / pieces if pieces else 0.0,
    }


def _classes(done: Sequence[Record]) -> dict[str, Any]:
    if not any(record.job.batch for record in done):
        return {}
    return {
        name: latencies([record for record in done if record.job.batch is batch])
        for name, batch in (("interactive", False), ("batch", True))
    }


def _milliseconds(
    records: Iterable[Record], value: Callable[[Record], float | None]
) -> list[float]:
    return [seconds * 1000 for record in records if (seconds := value(record)) is not None]


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
