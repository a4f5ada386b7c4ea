"""The event-stream client over a small HTTP server on a real socket."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
import uvloop

sys.path.insert(0, str(Path(__file__).parent))

from fake_servers import fake_sse

from bench.load.lengths import Fixed
from bench.load.record import Record, RequestFailed
from bench.load.targets.openai import OpenAiTarget
from bench.load.workload import Job, Workload

SHAPE = Workload(prompt_tokens=Fixed(4), output_tokens=Fixed(6))


def record(**values) -> Record:
    return Record(Job(**{"index": 0, "prompt_ids": (7, 8), "output_tokens": 4, **values}), 0.0, 0.0)


def text(piece: str, finish: str | None = None, **fields) -> str:
    choice = {"index": 0, "text": piece, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice], **fields})}\n\n"


def usage(prompt: int, output: int, cached: int | None = None) -> dict:
    details = None if cached is None else {"cached_tokens": cached}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": details,
    }


async def run(handler, made: Record, **options):
    """One request; returns what the server saw."""
    async with fake_sse(handler) as (requests, url):
        target = OpenAiTarget(url, SHAPE, **options)
        try:
            await target.open()
            await target.run(made)
        finally:
            await target.close()
    return requests


async def test_usage_at_the_end_gives_the_totals():
    async def handler(body):
        yield text("a")
        yield text("b")
        yield text("cd", "length")
        yield f"data: {json.dumps({'choices': [], 'usage': usage(2, 4, 0)})}\n\n"
        yield "data: [DONE]\n\n"

    made = record()
    requests = await run(handler, made)
    assert made.pieces == [1, 1, 1]
    assert made.output_tokens == 4
    assert made.ended is not None
    assert (made.ended.prompt_tokens, made.ended.cached_tokens) == (2, 0)
    assert made.finish_reason == "length"
    body = requests[0]["body"]
    assert requests[0]["line"].startswith("POST /v1/completions ")
    assert body["prompt"] == [7, 8]
    assert body["model"] == "listed"
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_tokens"] == 4
    assert body["ignore_eos"] is True


async def test_usage_in_every_chunk_gives_each_piece_its_tokens():
    async def handler(body):
        yield text("a", usage=usage(2, 1))
        yield text("bcd", usage=usage(2, 4))
        yield "data: [DONE]\n\n"

    made = record()
    await run(handler, made)
    assert made.pieces == [1, 3]


async def test_without_usage_pieces_are_counted():
    async def handler(body):
        yield text("a")
        yield text("")
        yield text("b")
        yield "data: [DONE]\n\n"

    made = record()
    await run(handler, made)
    assert made.ended is not None
    assert made.ended.output_tokens is None
    assert made.output_tokens == 2


async def test_events_may_be_cut_anywhere():
    whole = text("é") + text("b", "stop") + "data: [DONE]\n\n"

    async def handler(body):
        for start in range(0, len(whole), 7):
            yield whole[start : start + 7]

    made = record()
    await run(handler, made)
    assert made.pieces == [1, 1]
    assert made.ended is not None


async def test_chat_reads_deltas_and_sends_words():
    async def handler(body):
        for delta in ({"role": "assistant"}, {"content": "Hi"}, {"reasoning_content": "hm"}):
            yield f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"
        yield "data: [DONE]\n\n"

    made = record()
    requests = await run(handler, made, endpoint="chat", ids=False, model="m", key="secret")
    assert made.pieces == [1, 1]
    assert requests[0]["line"].startswith("POST /v1/chat/completions ")
    content = requests[0]["body"]["messages"][0]["content"]
    assert len(content.split()) == 2
    assert requests[0]["headers"]["authorization"] == "bearer secret"


async def test_a_refusal_keeps_code_status_and_retry():
    async def handler(body):
        error = {"error": {"code": "rate_limit_exceeded", "message": "slow down"}}
        yield 429, {"retry-after": "2"}, json.dumps(error)

    with pytest.raises(RequestFailed) as caught:
        await run(handler, record())
    assert (caught.value.reason, caught.value.status) == ("rate_limit_exceeded", "429")
    assert caught.value.retry_after == 2.0


async def test_an_error_inside_the_stream_is_a_failure():
    async def handler(body):
        yield text("a")
        yield f"data: {json.dumps({'error': {'code': 'worker_died', 'message': 'gone'}})}\n\n"

    made = record()
    await run(handler, made)
    assert made.failure is not None
    assert made.failure.reason == "worker_died"


async def test_a_stream_cut_off_has_no_terminal():
    async def handler(body):
        yield text("a")

    made = record()
    await run(handler, made)
    assert made.ended is None
    assert made.failure is None


@pytest.mark.parametrize("leave_after", [0, 2])
async def test_leaving_closes_the_connection(leave_after):
    left = asyncio.Event()

    async def handler(body):
        try:
            while True:
                yield text("a")
                await asyncio.sleep(0.001)
        finally:
            left.set()

    async with fake_sse(handler) as (_, url):
        target = OpenAiTarget(url, SHAPE, model="m")
        made = record(cancel_after=leave_after)
        await target.run(made)
        assert made.ended is None
        if leave_after:
            assert made.streamed_tokens == leave_after
            await asyncio.wait_for(left.wait(), 10)
        await target.close()


async def test_the_clients_deadline_is_its_own_failure():
    async def handler(body):
        yield text("a")
        await asyncio.Event().wait()

    with pytest.raises(RequestFailed, match="DEADLINE"):
        await run(handler, record(deadline_s=0.05))


async def test_connections_are_used_again():
    async def handler(body):
        yield text("a")
        yield "data: [DONE]\n\n"

    ports = set()
    async with fake_sse(handler) as (requests, url):
        target = OpenAiTarget(url, SHAPE)
        await target.open()
        for _ in range(3):
            made = record()
            await target.run(made)
            assert made.ended is not None
            ports |= {id(item) for item in target._client._idle}
        await target.close()
    assert len(ports) == 1
    assert len(requests) == 3


async def test_nothing_at_the_address_is_named():
    target = OpenAiTarget("http://127.0.0.1:9/v1", SHAPE)
    with pytest.raises(RequestFailed, match="NO_BACKEND"):
        await target.open()


def test_the_client_runs_on_the_loop_of_the_command():
    async def handler(body):
        yield text("a")
        yield "data: [DONE]\n\n"

    async def one_request() -> Record:
        made = record()
        await run(handler, made)
        return made

    assert uvloop.run(one_request()).ended is not None


def test_chat_with_ids_and_addresses_without_scheme_are_refused():
    with pytest.raises(ValueError, match="completions only"):
        OpenAiTarget("http://x/v1", SHAPE, endpoint="chat")
    with pytest.raises(ValueError, match="http://"):
        OpenAiTarget("x:80/v1", SHAPE)
