"""Outgoing streams always end at the server; context and deadlines travel with calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from antiphon_core import errors, metrics
from antiphon_core.rpc.context import RequestContext, current, use_context
from antiphon_core.rpc.streams import messages, open_stream, result, write
from antiphon_core.telemetry import parse_traceparent
from google.protobuf.wrappers_pb2 import StringValue

REQUEST = StringValue(value="x")
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def slow(text: str) -> str:
    await asyncio.sleep(0.01)
    return text


async def test_breaking_out_of_a_stream_ends_the_handler(bench) -> None:
    bench.servicer.script = slow
    async with open_stream(bench.stub.unary_stream(REQUEST)) as call:
        async for message in messages(call):
            assert message.value == "x0"
            break
    await asyncio.wait_for(bench.servicer.cleaned.wait(), 20)


async def test_an_exception_in_the_block_ends_the_handler(bench) -> None:
    bench.servicer.script = slow
    with pytest.raises(RuntimeError, match="route failed"):
        async with open_stream(bench.stub.unary_stream(REQUEST)) as call:
            async for _ in messages(call):
                raise RuntimeError("route failed")
    await asyncio.wait_for(bench.servicer.cleaned.wait(), 20)


async def test_a_handler_stuck_in_flow_control_is_cleaned_up(bench) -> None:
    """The handler is cancelled while it writes, not while it computes."""

    async def large(text: str) -> str:
        return "x" * 1_000_000

    bench.servicer.script = large
    async with open_stream(bench.stub.unary_stream(REQUEST)) as call:
        async for _ in messages(call):
            await asyncio.sleep(0.2)
            assert not bench.servicer.cleaned.is_set()
            break
    await asyncio.wait_for(bench.servicer.cleaned.wait(), 20)


async def test_a_cancelled_client_task_ends_a_bidirectional_handler(bench) -> None:
    async def requests() -> AsyncIterator[StringValue]:
        yield REQUEST
        await asyncio.Event().wait()

    async def consume() -> None:
        async with open_stream(bench.stub.stream_stream(requests())) as call:
            async for _ in messages(call):
                pass

    task = asyncio.create_task(consume())
    await asyncio.wait_for(bench.servicer.entered.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(bench.servicer.cleaned.wait(), 20)


async def test_a_call_cancelled_elsewhere_is_a_typed_error(bench) -> None:
    bench.servicer.script = slow
    with pytest.raises(errors.Cancelled):
        async with open_stream(bench.stub.unary_stream(REQUEST)) as call:
            async for _ in messages(call):
                call.cancel()


async def test_a_finished_stream_is_complete(bench) -> None:
    requests = [StringValue(value=str(number)) for number in range(500)]
    async with open_stream(bench.stub.stream_stream(iter(requests))) as call:
        got = [message.value async for message in messages(call)]
    assert got == [str(number) for number in range(500)]


async def test_the_context_travels(bench) -> None:
    seen: list[RequestContext] = []

    async def script(text: str) -> str:
        seen.append(current())
        return text

    bench.servicer.script = script
    sent = RequestContext("req-1", TRACEPARENT, "acme", "batch", time.time() + 20)
    with use_context(sent):
        await result(bench.stub.unary_unary(REQUEST))
    (got,) = seen
    assert (got.request_id, got.tenant, got.priority) == ("req-1", "acme", "batch")
    assert got.deadline == pytest.approx(sent.deadline, abs=0.5)
    parent, child = parse_traceparent(TRACEPARENT), parse_traceparent(got.traceparent)
    assert parent is not None
    assert child is not None
    assert child.trace_id == parent.trace_id
    assert child.span_id != parent.span_id
    assert current() == RequestContext()


async def test_a_call_outside_a_request_gets_a_request_id_and_a_trace(bench) -> None:
    seen: list[RequestContext] = []

    async def script(text: str) -> str:
        seen.append(current())
        return text

    bench.servicer.script = script
    await result(bench.stub.unary_unary(REQUEST))
    await result(bench.stub.unary_unary(REQUEST, metadata=(("x-request-id", "bad id!"),)))
    assert len({context.request_id for context in seen}) == 2
    assert all(len(context.request_id) == 32 for context in seen)
    assert all(context.trace_id and context.deadline is None for context in seen)


@pytest.mark.parametrize(
    ("name", "value"), [("x-antiphon-priority", "urgent"), ("x-antiphon-tenant", "a/b")]
)
async def test_wrong_metadata_is_refused_by_name(bench, name: str, value: str) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        await result(bench.stub.unary_unary(REQUEST, metadata=((name, value),)))
    assert caught.value.field == name


async def test_many_abandoned_streams_leave_no_call_behind(bench) -> None:
    bench.servicer.script = slow
    method = "/antiphon.test.v1.ScriptService/UnaryStream"
    internal = metrics.value("grpc_server_handled_total", method=method, code="INTERNAL")

    async def abandon(after: int) -> None:
        async with open_stream(bench.stub.unary_stream(REQUEST)) as call:
            count = 0
            async for _ in messages(call):
                count += 1
                if count >= after:
                    break

    await asyncio.gather(*(abandon(number % 4) for number in range(100)))
    assert await bench.server.calls.wait_idle(20.0)
    after = metrics.value("grpc_server_handled_total", method=method, code="INTERNAL")
    assert after == internal


async def test_a_write_to_a_failed_call_raises_its_error(bench) -> None:
    async def script(text: str) -> str:
        raise errors.InvalidArgument("bad first message", reason="STREAM_PROTOCOL")

    bench.servicer.script = script
    with pytest.raises(errors.InvalidArgument) as caught:
        async with open_stream(bench.stub.stream_stream()) as call, asyncio.timeout(20.0):
            while True:
                await write(call, REQUEST)
                await asyncio.sleep(0.01)
    assert caught.value.reason == "STREAM_PROTOCOL"


async def test_a_writer_and_a_reader_of_a_failing_call_get_the_peers_error(bench) -> None:
    """gRPC names the call INTERNAL when a write meets the end before the status is read."""

    async def script(text: str) -> str:
        raise errors.ResourceExhausted("full", reason="SLOTS_FULL")

    async def write_on(call) -> None:
        while True:
            await write(call, REQUEST)

    async def read(call) -> None:
        async for _ in messages(call):
            pass

    async def attempt() -> list[BaseException]:
        async with open_stream(bench.stub.stream_stream()) as call, asyncio.timeout(20.0):
            sides = write_on(call), read(call)
            return [r for r in await asyncio.gather(*sides, return_exceptions=True) if r]

    bench.servicer.script = script
    for _ in range(25):
        for failures in await asyncio.gather(*(attempt() for _ in range(8))):
            assert [(getattr(each, "reason", each)) for each in failures] == ["SLOTS_FULL"] * 2


async def test_a_write_after_the_end_is_a_typed_error(bench) -> None:
    async with open_stream(bench.stub.stream_stream()) as call:
        await write(call, REQUEST)
        await call.done_writing()
        assert [message.value async for message in messages(call)] == ["x"]
        with pytest.raises(errors.Unavailable):
            await write(call, REQUEST)
