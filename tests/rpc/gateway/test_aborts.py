"""Clients that go away, and clients that read slowly."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from antiphon_core.errors import InvalidArgument
from fake_backends import LlmScript, RecognitionScript, SpeechScript
from gateway_bench import GatewayBench, events_of
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MULTIPART = (
    b"--b\r\ncontent-disposition: form-data; name=file; filename=a.wav\r\n\r\nRIFF0000\r\n--b--\r\n"
)


async def send_raw(
    bench: GatewayBench, path: str, body: bytes, content_type: str = "application/json"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Sends a request over a socket that the test can close at any byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.port, limit=1 << 20)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {content_type}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


def chat_body(**fields: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode()


def calls_running(bench: GatewayBench) -> int:
    fakes = bench.fakes
    return sum(s.calls.running for s in (fakes.llm, fakes.vocoder, fakes.recognition))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_generation_is_cancelled(either_bench: GatewayBench, path: str, stream: bool) -> None:
    bench = either_bench
    bench.fakes.llm.script = LlmScript(words=("x",) * 10_000, delay=0.01)
    body = (
        chat_body(stream=stream)
        if "chat" in path
        else json.dumps({"prompt": ["a", "b"], "stream": stream}).encode()
    )
    _, writer = await send_raw(bench, path, body)
    await until(lambda: calls_running(bench) > 0)
    await asyncio.sleep(0.05)
    await assert_freed(bench, writer)


async def test_waiting_for_admission_is_cancelled(either_bench: GatewayBench) -> None:
    bench = either_bench
    bench.fakes.llm.script = LlmScript(accept_delay=30)
    _, writer = await send_raw(bench, "/v1/chat/completions", chat_body(stream=True))
    await until(lambda: calls_running(bench) == 1)
    await assert_freed(bench, writer)


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_speech_is_cancelled(bench: GatewayBench, stream_format: str) -> None:
    bench.fakes.vocoder.script = SpeechScript(chunks=(b"\0" * 480,) * 10_000, delay=0.01)
    body = json.dumps({"input": "Hello.", "stream_format": stream_format}).encode()
    reader, writer = await send_raw(bench, "/v1/audio/speech", body)
    await reader.read(100)
    await assert_freed(bench, writer)


async def test_transcription_is_cancelled(bench: GatewayBench) -> None:
    bench.fakes.recognition.script = RecognitionScript(delay=30)
    kind = "multipart/form-data; boundary=b"
    _, writer = await send_raw(bench, "/v1/audio/transcriptions", MULTIPART, kind)
    await until(lambda: calls_running(bench) == 1)
    await assert_freed(bench, writer)


async def assert_freed(bench: GatewayBench, writer: asyncio.StreamWriter) -> None:
    """Resets the connection; every backend call must end long before its end, as cancelled."""
    writer.transport.abort()
    await until(lambda: calls_running(bench) == 0)
    fakes = bench.fakes
    calls = (fakes.llm.calls, fakes.vocoder.calls, fakes.recognition.calls)
    assert any(call.cancelled_at for call in calls)
    await until(lambda: bench.gateway.active_requests == 0)


async def test_random_aborts_leave_nothing_behind(either_bench: GatewayBench) -> None:
    bench = either_bench
    bench.fakes.llm.script = LlmScript(delay=0.002)
    chance = random.Random(7)
    tasks_before = len(asyncio.all_tasks())

    async def abort_once() -> None:
        body = chat_body(stream=chance.random() < 0.7, n=chance.choice((1, 2)))
        reader, writer = await send_raw(bench, "/v1/chat/completions", body)
        with_answer = chance.random() < 0.5
        await asyncio.sleep(chance.random() * 0.02)
        if with_answer:
            await reader.read(chance.randrange(1, 2000))
        writer.transport.abort()

    for _ in range(25):
        await asyncio.gather(*(abort_once() for _ in range(20)))
    await until(lambda: calls_running(bench) == 0 and bench.gateway.active_requests == 0)
    await until(lambda: len(asyncio.all_tasks()) <= tasks_before)
    assert (await bench.chat()).status_code == 200


async def test_a_slow_reader_gets_everything_and_holds_the_service_back(
    balanced_bench: GatewayBench,
) -> None:
    bench = balanced_bench
    words = tuple(f"{index:07d} " * 512 for index in range(2_000))
    bench.fakes.llm.script = LlmScript(words=words)
    reader, writer = await send_raw(bench, "/v1/chat/completions", chat_body(stream=True))
    await until(lambda: calls_running(bench) == 1)
    for _ in range(5):
        # While this client reads nothing, others are served.
        bench.fakes.llm.script = LlmScript()
        assert (await bench.chat()).status_code == 200
        await asyncio.sleep(0.05)
    await until(lambda: calls_running(bench) <= 1)
    assert calls_running(bench) == 1, "the service was not held back"
    data = bytearray()
    while b"[DONE]" not in data[-100:]:
        piece = await reader.read(1 << 20)
        assert piece
        data += piece
    writer.close()
    events = events_of(unchunk(bytes(data)).decode())
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1])
    assert text == "".join(words)


async def test_a_backend_that_goes_after_admission_refused_nothing(
    either_bench: GatewayBench,
) -> None:
    """The edge must not send the request on as one that was never begun."""
    bench = either_bench
    bench.fakes.llm.script = LlmScript(words=("x",) * 1000, delay=0.01)
    said = bench.fakes.llm.words_said
    answer = asyncio.create_task(bench.chat())
    await until(lambda: bench.fakes.llm.words_said > said + 10)
    await bench.fakes.stop()
    response = await answer
    assert (response.status_code, response.json()["error"]["code"]) == (502, "bad_gateway")
    assert "x-antiphon-not-started" not in response.headers
    await until(lambda: bool(bench.backends.missing))
    assert (await bench.chat()).headers["x-antiphon-not-started"] == "1"
    await bench.fakes.start()
    await until(lambda: not bench.backends.missing)


def unchunk(data: bytes) -> bytes:
    """The body of a chunked response."""
    position = data.index(b"\r\n\r\n") + 4
    pieces = []
    while position < len(data):
        line_end = data.index(b"\r\n", position)
        start, length = line_end + 2, int(data[position:line_end], 16)
        pieces.append(data[start : start + length])
        position = start + length + 2
    return b"".join(pieces)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def impatient_bench() -> AsyncIterator[GatewayBench]:
    made = GatewayBench(
        limits={
            "ping_seconds": 0.05,
            "stalled_reader_seconds": 0.3,
            "body_idle_seconds": 0.2,
            "request_seconds": 0.5,
        }
    )
    await made.start()
    yield made
    await made.stop()


async def test_silence_is_filled_with_comments(impatient_bench: GatewayBench) -> None:
    impatient_bench.fakes.llm.script = LlmScript(words=("x",), delay=0.3)
    response = await impatient_bench.chat(stream=True)
    assert response.text.count(": ping\n\n") >= 3
    assert events_of(response.text)[-1] == "[DONE]"


async def test_no_comment_before_the_status(impatient_bench: GatewayBench) -> None:
    refusal = InvalidArgument("too late to be early")
    impatient_bench.fakes.llm.script = LlmScript(accept_delay=0.2, fail_before=refusal)
    assert (await impatient_bench.chat(stream=True)).status_code == 400


async def test_a_stalled_reader_is_disconnected(impatient_bench: GatewayBench) -> None:
    words = ("x" * 4096,) * 20_000
    impatient_bench.fakes.llm.script = LlmScript(words=words)
    _, writer = await send_raw(impatient_bench, "/v1/chat/completions", chat_body(stream=True))
    await until(lambda: calls_running(impatient_bench) == 1)
    await until(lambda: calls_running(impatient_bench) == 0, 30.0)
    writer.close()


async def test_deadline_ends_a_long_generation(impatient_bench: GatewayBench) -> None:
    impatient_bench.fakes.llm.script = LlmScript(words=("x",) * 100, delay=0.1)
    response = await impatient_bench.chat()
    assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")


async def test_a_body_that_stops_is_refused(impatient_bench: GatewayBench) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", impatient_bench.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    head = await asyncio.wait_for(reader.read(100), 20)
    assert head.startswith(b"HTTP/1.1 408")
    writer.close()
