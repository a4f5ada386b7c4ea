"""Generations that share one stream to a directly dialled service, and share nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from antiphon_core.errors import AntiphonError, DeadlineExceeded, Unavailable
from antiphon_core.rpc.context import RequestContext, use_context
from antiphon_gateway.clients import multiplex
from antiphon_gateway.domain.generation import (
    Accepted,
    Completed,
    Delta,
    Finished,
    GenerateRequest,
)
from fake_backends import WORDS, LlmScript
from gateway_bench import GatewayBench, events_of
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "".join(WORDS)


async def test_all_requests_share_one_stream(bench: GatewayBench) -> None:
    llm = bench.fakes.llm
    await bench.chat()
    opened = llm.streams
    answers = await asyncio.gather(*(bench.chat(n=2, stream=i % 2 == 0) for i in range(20)))
    assert all(answer.status_code == 200 for answer in answers)
    assert llm.streams == opened
    ids = [start.stream_id for start in llm.starts]
    assert len(set(ids)) == len(ids)


async def test_before_a_proxy_each_generation_is_its_own_call(balanced_bench: GatewayBench) -> None:
    assert (await balanced_bench.chat()).status_code == 200
    assert balanced_bench.fakes.llm.streams == 0


async def test_each_start_carries_its_own_request(bench: GatewayBench) -> None:
    llm = bench.backends.llm
    contexts = (
        RequestContext("first", "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "acme", "batch"),
        RequestContext("second"),
    )
    for context in contexts:
        with use_context(context):
            async with llm.generate(GenerateRequest("ab", timeout=9.0)) as events:
                assert isinstance([event async for event in events][-1], Completed)
    first, second = bench.fakes.llm.starts[-2:]
    assert (first.request_id, first.tenant, first.batch) == ("first", "acme", True)
    assert first.traceparent == contexts[0].traceparent
    assert first.timeout.ToMilliseconds() == 9000
    assert (second.request_id, second.tenant, second.batch) == ("second", "", False)


async def test_the_stream_itself_belongs_to_no_request(bench: GatewayBench) -> None:
    """What a start leaves out, the service takes from the stream: it must not be another's."""
    await bench.fakes.stop()
    await until(lambda: bool(bench.backends.missing))
    await bench.fakes.start()
    await until(lambda: not bench.backends.missing)
    with use_context(RequestContext("opener", tenant="acme", deadline=1.0)):
        async with bench.backends.llm.generate(GenerateRequest("ab", timeout=9.0)) as events:
            assert isinstance([event async for event in events][-1], Completed)
    metadata = bench.fakes.llm.stream_metadata
    assert "x-antiphon-tenant" not in metadata
    assert metadata["x-request-id"] != "opener"


async def test_one_failure_leaves_the_others(bench: GatewayBench) -> None:
    script = LlmScript(words=("x",) * 20, delay=0.01)
    bench.fakes.llm.script = script
    good = asyncio.create_task(bench.chat())
    await until(lambda: bench.fakes.llm.calls.running == 1)
    bench.fakes.llm.script = LlmScript(fail_after_words=2, failure=Unavailable("no"))
    assert (await bench.chat()).status_code == 503
    assert (await good).json()["choices"][0]["message"]["content"] == "x" * 20


async def test_a_lost_stream_fails_its_requests_and_the_next_opens_another(
    bench: GatewayBench,
) -> None:
    llm = bench.fakes.llm
    llm.script = LlmScript(words=("x",) * 1000, delay=0.01)
    whole = asyncio.create_task(bench.chat())
    await until(lambda: llm.calls.running == 1)
    body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with bench.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        text = answer.aiter_text()
        heard = await anext(text)  # So the service has taken both.
        opened = llm.streams
        llm.break_streams = True
        heard += "".join([piece async for piece in text])
    assert events_of(heard)[-1]["error"]["code"] == "bad_gateway"
    assert (await whole).json()["error"]["code"] == "bad_gateway"
    await until(lambda: llm.calls.running == 0)
    llm.break_streams = False
    llm.script = LlmScript()
    assert (await bench.chat()).json()["choices"][0]["message"]["content"] == TEXT
    assert llm.streams == opened + 1


async def test_a_stream_that_drains_refuses_what_it_did_not_take(bench: GatewayBench) -> None:
    llm = bench.fakes.llm
    llm.script = LlmScript(accept_delay=30)
    waiting = asyncio.create_task(bench.chat())
    await until(lambda: llm.calls.running == 1)
    llm.end_streams()
    response = await waiting
    assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
    assert response.headers["x-antiphon-not-started"] == "1"


async def test_a_stream_that_ends_without_a_terminal_is_an_error(bench: GatewayBench) -> None:
    llm = bench.fakes.llm
    llm.script = LlmScript(words=("x",) * 1000, delay=0.01)
    said = llm.words_said
    running = asyncio.create_task(bench.chat())
    await until(lambda: llm.words_said > said)
    llm.end_streams()
    response = await running
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")


async def test_the_deadline_holds_though_the_service_is_silent(bench: GatewayBench) -> None:
    bench.fakes.llm.script = LlmScript(accept_delay=30)
    bench.fakes.llm.ignores_timeouts = True
    try:
        with pytest.raises(DeadlineExceeded):
            async with bench.backends.llm.generate(GenerateRequest("ab", timeout=0.1)) as events:
                await anext(events)
    finally:
        bench.fakes.llm.ignores_timeouts = False
    await until(lambda: bench.fakes.llm.calls.running == 0)


async def test_cancel_from_another_task_ends_the_wait(bench: GatewayBench) -> None:
    bench.fakes.llm.script = LlmScript(accept_delay=30)
    async with bench.backends.llm.generate(GenerateRequest("ab")) as events:
        reading = asyncio.ensure_future(anext(events))
        await until(lambda: bench.fakes.llm.calls.running == 1)
        events.cancel()
        with pytest.raises(AntiphonError, match="cancelled"):
            await reading
    await until(lambda: bench.fakes.llm.calls.running == 0)


async def test_what_a_reader_has_not_taken_is_merged(bench: GatewayBench) -> None:
    words = tuple(f"{number} " for number in range(500))
    bench.fakes.llm.script = LlmScript(words=words)
    async with bench.backends.llm.generate(GenerateRequest("ab")) as events:
        assert isinstance(events, multiplex.MultiplexedGeneration)
        await until(lambda: events.is_over)
        found = [event async for event in events]
    assert [type(event) for event in found] == [Accepted, Delta, Finished, Completed]
    assert isinstance(found[1], Delta)
    assert found[1].text == "".join(words)
    assert found[1].token_count == len(words)


@pytest_asyncio.fixture
async def small_inboxes(
    bench: GatewayBench, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[None]:
    client = bench.backends.llm.pool.members[0].client
    assert client._many is not None
    monkeypatch.setattr(client._many, "_inbox_bytes", 4096)
    yield


@pytest.mark.usefixtures("small_inboxes")
async def test_a_reader_too_far_behind_is_ended_alone(bench: GatewayBench) -> None:
    bench.fakes.llm.script = LlmScript(words=("x" * 100,) * 500, delay=0.001)
    llm = bench.backends.llm
    async with llm.generate(GenerateRequest("slow")) as slow:
        async with llm.generate(GenerateRequest("quick")) as quick:
            text = "".join([event.text async for event in quick if isinstance(event, Delta)])
        assert text == "x" * 50_000
        taken = []
        with pytest.raises(DeadlineExceeded) as refused:
            async for event in slow:
                taken.append(event)
    assert refused.value.reason == "INPUT_IDLE"
    assert sum(len(event.text) for event in taken if isinstance(event, Delta)) > 3000
    await until(lambda: bench.fakes.llm.calls.running == 0)


async def test_events_with_more_than_text_keep_their_order(bench: GatewayBench) -> None:
    request = GenerateRequest("ab", choice_count=2, logprobs=1)
    async with bench.backends.llm.generate(request) as events:
        found = [event async for event in events]
    deltas = [event for event in found if isinstance(event, Delta)]
    for choice in (0, 1):
        mine = [delta for delta in deltas if delta.choice == choice]
        assert [delta.text for delta in mine] == list(WORDS)
        assert [item.token.decode() for delta in mine for item in delta.logprobs] == list(WORDS)
