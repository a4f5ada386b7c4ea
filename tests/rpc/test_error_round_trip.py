"""Domain errors over the wire: type, reason, metadata and retry survive on all call kinds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from antiphon.common.v1 import error_pb2
from antiphon_core import errors, metrics
from antiphon_core.logs import configure_logging
from antiphon_core.rpc.errors import from_status, to_status
from antiphon_core.rpc.streams import read_all, result
from google.protobuf.wrappers_pb2 import StringValue
from google.rpc.error_details_pb2 import RetryInfo
from grpc_status import rpc_status
from hypothesis import given
from hypothesis import strategies as st

REQUEST = StringValue(value="x")

CALLS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "unary-unary": lambda stub: result(stub.unary_unary(REQUEST)),
    "unary-stream": lambda stub: read_all(stub.unary_stream(REQUEST)),
    "unary-stream by write": lambda stub: read_all(stub.unary_stream_by_write(REQUEST)),
    "stream-unary": lambda stub: result(stub.stream_unary(iter([REQUEST]))),
    "stream-stream": lambda stub: read_all(stub.stream_stream(iter([REQUEST]))),
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Callable[[Any], Awaitable[Any]]:
    return CALLS[request.param]


def raising(error: BaseException) -> Callable[[str], Awaitable[str]]:
    async def script(text: str) -> str:
        raise error

    return script


async def test_a_domain_error_arrives_as_itself(bench, call) -> None:
    bench.servicer.script = raising(
        errors.ResourceExhausted(
            "the queue is full (8 of 8)",
            reason="QUEUE_FULL",
            metadata={"limit": "8", "observed": "8"},
            retry_after=1.25,
        )
    )
    with pytest.raises(errors.ResourceExhausted) as caught:
        await call(bench.stub)
    assert caught.value.message == "the queue is full (8 of 8)"
    assert caught.value.reason == "QUEUE_FULL"
    assert caught.value.metadata == {"limit": "8", "observed": "8"}
    assert caught.value.retry_after == 1.25


async def test_a_defect_is_internal_without_its_text(bench, call, capfd) -> None:
    configure_logging("test")
    bench.servicer.script = raising(KeyError("secret of the database"))
    with pytest.raises(errors.Internal) as caught:
        await call(bench.stub)
    assert "secret" not in str(caught.value) + str(caught.value.metadata)
    request_id = caught.value.metadata["request_id"]
    logged = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    (line,) = [entry for entry in logged if entry["event"] == "rpc_handler_failed"]
    assert line["request_id"] == request_id
    assert "secret of the database" in line["exception"]
    assert "Traceback" in line["exception"]


async def test_an_error_inside_a_task_group_keeps_its_type(bench) -> None:
    group = ExceptionGroup("tasks", [errors.NotFound("no voice 'x'", reason="VOICE_NOT_FOUND")])
    bench.servicer.script = raising(group)
    with pytest.raises(errors.NotFound) as caught:
        await result(bench.stub.unary_unary(REQUEST))
    assert caught.value.reason == "VOICE_NOT_FOUND"


async def test_an_upstream_failure_passes_through_typed(bench) -> None:
    upstream = errors.Unavailable("the worker died", reason="WORKER_DIED")
    calls = 0

    async def script(text: str) -> str:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise upstream
        return (await bench.stub.unary_unary(REQUEST)).value

    bench.servicer.script = script
    with pytest.raises(errors.Unavailable) as caught:
        await result(bench.stub.unary_unary(REQUEST))
    assert caught.value.reason == "WORKER_DIED"


async def test_the_wire_form_is_standard(bench) -> None:
    bench.servicer.script = raising(
        errors.InvalidArgument("temperature is too high", field="temperature", allowed=("0", "1"))
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.stub.unary_unary(REQUEST)
    status = rpc_status.from_call(caught.value)
    assert status is not None
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert [detail.type_url for detail in status.details] == [
        "type.googleapis.com/google.rpc.ErrorInfo"
    ]
    typed = from_status(status)
    assert typed.field == "temperature"
    assert typed.metadata["allowed"] == "0, 1"


async def test_no_connection_is_unavailable(unused_tcp_port: int) -> None:
    from antiphon_core.rpc.channel import open_channel
    from rpc_stub import ScriptStub

    async with open_channel(f"127.0.0.1:{unused_tcp_port}") as channel:
        with pytest.raises(errors.Unavailable) as caught:
            await result(ScriptStub(channel).unary_unary(REQUEST))
    assert caught.value.reason == "NO_BACKEND"
    assert caught.value.retry_after is None


async def test_a_passed_deadline_is_typed_and_cancels_the_handler(bench) -> None:
    async def script(text: str) -> str:
        await asyncio.sleep(30)
        return text

    bench.servicer.script = script
    with pytest.raises(errors.DeadlineExceeded):
        await result(bench.stub.unary_unary(REQUEST, timeout=0.1))
    await asyncio.wait_for(bench.servicer.cleaned.wait(), 20)


async def test_handled_calls_are_counted_by_code(bench) -> None:
    method = "/antiphon.test.v1.ScriptService/UnaryUnary"

    def count(code: str) -> float:
        return metrics.value("grpc_server_handled_total", method=method, code=code) or 0.0

    before = count("OK"), count("NOT_FOUND")
    await bench.stub.unary_unary(REQUEST)
    bench.servicer.script = raising(errors.NotFound("nothing here"))
    with pytest.raises(errors.NotFound):
        await result(bench.stub.unary_unary(REQUEST))
    assert (count("OK") - before[0], count("NOT_FOUND") - before[1]) == (1.0, 1.0)


def test_every_default_reason_is_in_the_shared_enum() -> None:
    names = set(error_pb2.ErrorReason.keys())
    for error_type in errors.ERROR_TYPES.values():
        assert f"ERROR_REASON_{error_type.default_reason}" in names


@given(
    error_type=st.sampled_from(sorted(errors.ERROR_TYPES.values(), key=lambda kind: kind.__name__)),
    message=st.text(),
    metadata=st.dictionaries(st.text(min_size=1), st.text()),
    retry_after=st.none() | st.floats(min_value=0, max_value=1e6),
)
def test_status_round_trip(error_type, message, metadata, retry_after) -> None:
    sent = error_type(message, metadata=metadata, retry_after=retry_after)
    status = to_status(sent)
    got = from_status(status)
    assert type(got) is error_type
    assert (got.message, got.reason, got.metadata) == (message, sent.reason, metadata)
    if retry_after is None:
        assert got.retry_after is None
        assert not any(detail.Is(RetryInfo.DESCRIPTOR) for detail in status.details)
    else:
        assert got.retry_after == pytest.approx(retry_after, abs=1e-6)
