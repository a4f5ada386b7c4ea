"""Logs, metrics and trace context as an operator sees them."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time

import pytest
from antiphon_core import logs, metrics
from antiphon_core.metrics import Metrics
from antiphon_core.rpc.context import RequestContext, use_context
from antiphon_core.telemetry import (
    TraceParent,
    continue_trace,
    new_traceparent,
    parse_traceparent,
    span,
)
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def lines(capfd):
    logs.configure_logging("llm")

    def read() -> list[dict]:
        return [json.loads(line) for line in capfd.readouterr().err.splitlines()]

    return read


def test_a_line_is_one_json_object_with_the_request(lines) -> None:
    log = logs.get_logger("front")
    with use_context(RequestContext("req-1", TRACEPARENT)):
        log.info("request_finished", tokens=3, text="line\nbreak")
    (line,) = lines()
    assert {"ts", "boot_id"} < line.keys()
    assert line["level"] == "info"
    assert line["service"] == "llm"
    assert line["logger"] == "front"
    assert line["event"] == "request_finished"
    assert (line["request_id"], line["trace_id"]) == ("req-1", TRACEPARENT.split("-")[1])
    assert (line["tokens"], line["text"]) == (3, "line\nbreak")


def test_levels_and_standard_logging(capfd) -> None:
    logs.configure_logging("llm", level="warning")
    logs.get_logger("x").info("hidden")
    logging.getLogger("uvicorn").warning("port %d", 3)
    (line,) = [json.loads(text) for text in capfd.readouterr().err.splitlines()]
    assert (line["event"], line["logger"], line["service"]) == ("port 3", "uvicorn", "llm")
    with pytest.raises(ValueError, match="debug, info, warning, error"):
        logs.configure_logging("llm", level="loud")


def test_console_lines_are_for_people(capfd) -> None:
    logs.configure_logging("llm", console=True)
    logs.get_logger("front").info("service_ready", seconds=1.5)
    text = capfd.readouterr().err
    assert "service_ready" in text
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


def test_repeated_warnings_are_limited_and_counted(lines, monkeypatch) -> None:
    now = 100.0
    monkeypatch.setattr("antiphon_core.logs.time.monotonic", lambda: now)
    log = logs.get_logger("front")
    for _ in range(50):
        log.warning("refused")
        log.info("receipt")
    now = 101.0
    log.warning("refused")
    written = lines()
    refused = [line for line in written if line["event"] == "refused"]
    assert len(refused) == 21
    assert refused[-1]["repeats_suppressed"] == 30
    assert sum(line["event"] == "receipt" for line in written) == 50


def test_values_that_json_lacks_are_written_as_text(lines) -> None:
    logs.get_logger("x").info("event", path=ValueError("bad"), keys={1, 2})
    (line,) = lines()
    assert line["path"] == "bad"


def test_metrics_are_prefixed_and_parse_back() -> None:
    registry = Metrics()
    registry.counter("requests_total", "Requests", ("operation",)).labels("chat").inc(2)
    registry.gauge("queue_depth", "Waiting").set(3)
    registry.histogram("step_seconds", "Steps", ("kind",), buckets=metrics.STEP_BUCKETS).labels(
        "decode"
    ).observe(0.003, {"trace_id": "abc"})
    text = registry.render().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {
        "antiphon_requests",
        "antiphon_queue_depth",
        "antiphon_step_seconds",
    }
    assert registry.value("requests_total", operation="chat") == 2
    exemplars = [sample.exemplar for sample in families["antiphon_step_seconds"].samples]
    assert any(exemplar and exemplar.labels == {"trace_id": "abc"} for exemplar in exemplars)


def test_a_metric_is_made_once_and_never_as_something_else() -> None:
    registry = Metrics()
    first = registry.counter("requests_total", "Requests", ("operation",))
    assert registry.counter("requests_total", "Requests", ("operation",)) is first
    with pytest.raises(ValueError, match="another kind"):
        registry.gauge("requests_total", "Requests")
    with pytest.raises(ValueError, match="labels"):
        registry.counter("requests_total", "Requests", ("other",))
    with pytest.raises(ValueError, match="_total"):
        registry.counter("requests", "Requests")


def test_a_fallback_is_counted_each_time_and_logged_once(lines) -> None:
    registry = Metrics()
    for _ in range(3):
        registry.fallback("linear", "no_compiler")
    count = registry.value("path_total", path="linear", result="fallback", reason="no_compiler")
    assert count == 3
    assert [line["event"] for line in lines()] == ["fallback_taken"]


def test_bucket_bounds_follow_the_specification() -> None:
    assert len(metrics.TPOT_BUCKETS) == 17
    assert (metrics.TPOT_BUCKETS[0], metrics.TPOT_BUCKETS[-1]) == (0.0005, 2.5)
    assert (metrics.FIRST_BUCKETS[0], metrics.FIRST_BUCKETS[-1]) == (0.001, 20.0)
    assert (metrics.STEP_BUCKETS[0], metrics.STEP_BUCKETS[-1]) == (0.0001, 1.0)
    for bounds in (metrics.TPOT_BUCKETS, metrics.FIRST_BUCKETS, metrics.STEP_BUCKETS):
        assert list(bounds) == sorted(set(bounds))


@pytest.mark.parametrize(
    ("header", "valid"),
    [
        (TRACEPARENT, True),
        (TRACEPARENT.replace("00-", "01-", 1) + "-future", True),
        (TRACEPARENT + "-extra", False),
        (TRACEPARENT.replace("00-", "ff-", 1), False),
        (TRACEPARENT.upper(), False),
        ("00-" + "0" * 32 + "-b7ad6b7169203331-01", False),
        ("00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01", False),
        ("", False),
        ("nonsense", False),
    ],
)
def test_traceparent_follows_the_standard(header: str, valid: bool) -> None:
    assert (parse_traceparent(header) is not None) == valid


def test_a_trace_is_continued_with_its_sampling_decision() -> None:
    child = continue_trace(TRACEPARENT[:-2] + "00")
    assert child.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert child.span_id != "b7ad6b7169203331"
    assert not child.sampled
    assert continue_trace(None).trace_id != continue_trace("bad").trace_id


@given(
    trace=st.integers(1, 2**128 - 1),
    span_number=st.integers(1, 2**64 - 1),
    sampled=st.booleans(),
)
def test_traceparent_round_trip(trace: int, span_number: int, sampled: bool) -> None:
    made = TraceParent(f"{trace:032x}", f"{span_number:016x}", sampled)
    assert parse_traceparent(str(made)) == made


def test_spans_cost_nothing_without_an_exporter() -> None:
    header = str(new_traceparent())
    with span("llm.generate", header) as inner:
        assert inner == header


def test_a_dead_collector_delays_neither_spans_nor_the_exit(unused_tcp_port: int) -> None:
    code = f"""
import time
from antiphon_core.telemetry import *
configure_tracing("llm", "http://127.0.0.1:{unused_tcp_port}", sample_ratio=1.0)
parent = new_traceparent()
with span("llm.generate", str(parent), {{"tokens": 3}}) as header:
    child = parse_traceparent(header)
assert child.trace_id == parent.trace_id and child.span_id != parent.span_id, header
started = time.monotonic()
for _ in range(5000):
    with span("step", header):
        pass
flush_tracing(0.2)
print(time.monotonic() - started)
"""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 5.0
    assert time.monotonic() - started < 15.0


def test_a_histogram_with_a_negative_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Metrics().histogram("test_slack_seconds", "Slack", buckets=(-1.0, 0.0, 1.0))
