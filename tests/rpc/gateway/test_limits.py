"""Bounds on what a client may send, on every route and whoever it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from fake_backends import LlmScript
from gateway_bench import GatewayBench
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

pytestmark = pytest.mark.asyncio(loop_scope="module")

HI = [{"role": "user", "content": "Hi"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small() -> AsyncIterator[GatewayBench]:
    made = GatewayBench(
        limits={
            "header_bytes": 1024,
            "json_bytes": 4096,
            "upload_bytes": 8192,
            "body_idle_seconds": 0.2,
            "request_seconds": 0.5,
        },
        api_keys=["0" * 64],
    )
    await made.start()
    yield made
    await made.stop()


async def exchange(bench: GatewayBench, *pieces: bytes) -> bytes:
    """What the gateway answers to raw bytes, up to the end of its first response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        return head
    finally:
        writer.close()


def head_of(path: str, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def test_large_heads(small: GatewayBench) -> None:
    answer = await small.http.get("/health", headers={"x-long": "x" * 1100})
    assert (answer.status_code, answer.json()["error"]["code"]) == (431, "request_too_large")
    assert "1024" in answer.json()["error"]["message"]
    url = small.url.replace("http", "ws") + "/v1/realtime"
    with pytest.raises(InvalidStatus) as refused:
        await connect(url, additional_headers={"x-long": "x" * 1100})
    assert refused.value.response.status_code == 431
    assert b"request_too_large" in refused.value.response.body


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/realtime/client_secrets", "/v1/no/such/route"]
)
async def test_a_declared_size_is_refused_before_the_body_and_the_key(
    small: GatewayBench, path: str
) -> None:
    head = await exchange(small, head_of(path, "Content-Length: 5000"))
    assert b" 413 " in head.splitlines()[0]


async def test_an_undeclared_size_is_counted() -> None:
    bench = GatewayBench(limits={"json_bytes": 4096})
    await bench.start()
    try:
        chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
        head = await exchange(
            bench, head_of("/v1/chat/completions", "Transfer-Encoding: chunked"), *[chunk] * 5
        )
        assert b" 413 " in head.splitlines()[0]
    finally:
        await bench.stop()


async def test_uploads_have_their_own_bound(small: GatewayBench) -> None:
    for path, fits, exceeds in (
        ("/v1/audio/translations", 200_000, 300_000),
        # Samples of known speakers are fields of a transcription, beside its file.
        ("/v1/audio/transcriptions", 20_000_000, 30_000_000),
    ):
        head = await exchange(small, head_of(path, f"Content-Length: {fits}"))
        assert b" 413 " not in head.splitlines()[0]
        head = await exchange(small, head_of(path, f"Content-Length: {exceeds}"))
        assert b" 413 " in head.splitlines()[0]


async def test_a_body_that_stops_coming() -> None:
    bench = GatewayBench(limits={"body_idle_seconds": 0.2})
    await bench.start()
    try:
        head = await exchange(bench, head_of("/v1/chat/completions", "Content-Length: 100"), b"{")
        assert b" 408 " in head.splitlines()[0]
    finally:
        await bench.stop()


async def test_deep_json() -> None:
    bench = GatewayBench(limits={"json_depth": 16})
    await bench.start()
    try:
        answer = await bench.http.post("/v1/chat/completions", content=b"[" * 17 + b"]" * 17)
        assert answer.json()["error"]["code"] == "invalid_json"
    finally:
        await bench.stop()


@pytest.mark.parametrize("balanced", [False, True])
async def test_a_request_has_a_deadline(balanced: bool) -> None:
    bench = GatewayBench(limits={"request_seconds": 0.3}, balanced=balanced)
    await bench.start()
    try:
        bench.fakes.llm.script = LlmScript(delay=5.0)
        answer = await bench.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    finally:
        await bench.stop()
