"""Damaged bodies and broken HTTP: an error of ours, never a 5xx, never a hang, nothing kept."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from gateway_bench import GatewayBench
from support.mutations import damaged, sound_requests
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODIES = [480, pytest.param(2_400, marks=pytest.mark.slow)]
AT_ONCE = 12
IDLE_S = 0.2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stored(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayBench]:
    """A gateway with a store, which waits shortly for bodies."""
    folder = tmp_path_factory.mktemp("store")
    made = GatewayBench(store={"directory": str(folder)}, limits={"body_idle_seconds": IDLE_S})
    await made.start()
    await until(lambda: not made.gateway.unready_reasons)
    yield made
    await made.stop()


async def test_sound_requests_are_served(stored: GatewayBench) -> None:
    for request in sound_requests():
        response = await stored.http.post(
            request.path, content=request.body, headers={"content-type": request.content_type}
        )
        assert response.status_code in (200, 400, 404), (request.path, response.text)


@pytest.mark.parametrize("bodies", BODIES)
async def test_damaged_bodies(stored: GatewayBench, bodies: int) -> None:
    sound = sound_requests()
    tasks_before = len(asyncio.all_tasks())
    statuses: Counter[int] = Counter()

    async def send(number: int) -> None:
        request = damaged(sound[number % len(sound)], random.Random(number))
        response = await stored.http.post(
            request.path, content=request.body, headers={"content-type": request.content_type}
        )
        statuses[response.status_code] += 1
        check(response, request)

    for start in range(0, bodies, AT_ONCE):
        await asyncio.gather(*(send(number) for number in range(start, start + AT_ONCE)))
    assert statuses[400] > bodies // 3, statuses
    assert statuses[200] > bodies // 20, "the damage hides what lies behind the first check"
    await nothing_is_left(stored, tasks_before)


def check(response: httpx.Response, request: object) -> None:
    assert response.status_code < 500, (request, response.text)
    if response.status_code >= 400:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"], request


async def nothing_is_left(bench: GatewayBench, tasks_before: int) -> None:
    fakes = (bench.fakes.llm, bench.fakes.vocoder, bench.fakes.recognition)
    await until(lambda: bench.gateway.active_requests == 0)
    await until(lambda: sum(fake.calls.running for fake in fakes) == 0)
    await until(lambda: len(asyncio.all_tasks()) <= tasks_before + AT_ONCE)
    assert (await bench.http.get("/health/ready")).status_code == 200
    assert (await bench.chat()).status_code == 200


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BODY = b'{"messages":[{"role":"user","content":"Hi"}]}'
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
LENGTH = b"content-length: %d\r\n\r\n"
BROKEN = {
    "length too large": HEAD + LENGTH % (len(BODY) + 9) + BODY,
    "length too small": HEAD + LENGTH % (len(BODY) - 9) + BODY,
    "length and chunks": HEAD + b"transfer-encoding: chunked\r\n" + LENGTH % 5 + BODY,
    "two lengths": HEAD + b"content-length: 5\r\n" + LENGTH % len(BODY) + BODY,
    "negative length": HEAD + b"content-length: -1\r\n\r\n" + BODY,
    "length of letters": HEAD + b"content-length: many\r\n\r\n" + BODY,
    "length beyond 64 bits": HEAD + b"content-length: 99999999999999999999999\r\n\r\n" + BODY,
    "chunk size of letters": CHUNKED + b"zz\r\n" + BODY,
    "chunk size too large": CHUNKED + b"fffffffffffffffff\r\n" + BODY,
    "chunk too short": CHUNKED + b"ff\r\n" + BODY,
    "chunk without its end": CHUNKED + b"5\r\n" + BODY,
    "chunks that never end": CHUNKED + b"1\r\n{\r\n" * 400,
    "chunks of one byte": CHUNKED + b"".join(b"1\r\n%c\r\n" % c for c in BODY) + b"0\r\n\r\n",
    "garbage": bytes(range(256)) * 8,
    "no method": b"\r\n\r\n\r\n",
    "other protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "tls hello": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "bare newlines": HEAD.replace(b"\r\n", b"\n") + LENGTH.replace(b"\r\n", b"\n") % 2 + b"{}",
    "nul in a header": HEAD + b"x-a: \0\r\n" + LENGTH % len(BODY) + BODY,
    "a header without a name": HEAD + b": x\r\n" + LENGTH % len(BODY) + BODY,
    "many headers": HEAD + b"".join(b"x-%d: y\r\n" % n for n in range(3_000)) + b"\r\n",
    "a very long path": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "an upgrade that is none": b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\n"
    b"upgrade: websocket\r\n\r\n",
    "an unknown method": b"BREW /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "a percent sign": b"GET /v1/models/%zz%ff%00 HTTP/1.1\r\nhost: x\r\n\r\n",
    "a query of bytes": b"GET /v1/files?limit=%ff&after=\xff&order=%00 HTTP/1.1\r\nhost: x\r\n\r\n",
    "an unknown version": b"GET /health HTTP/9.9\r\nhost: x\r\n\r\n",
    "half a request": HEAD[:30],
}
WAITS = {"half a request", "no method", "other protocol"}
"""What may still become a request: a server waits for the rest."""


@pytest.mark.parametrize("name", BROKEN)
async def test_broken_http(stored: GatewayBench, name: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stored.port)
    writer.write(BROKEN[name])
    try:
        answer = await asyncio.wait_for(reader.read(65536), 10 if name not in WAITS else 0.2)
    except TimeoutError:
        assert name in WAITS
        answer = b""
    except ConnectionError:
        answer = b""
    if answer:
        status = int(answer.split(b" ", 2)[1])
        assert status < 500, answer
        assert name != "chunks of one byte" or status == 200, answer
    writer.transport.abort()
    assert (await stored.http.get("/health")).status_code == 200
    await until(lambda: stored.gateway.active_requests == 0)


@pytest.mark.parametrize("seed", range(4))
async def test_random_bytes_over_random_writes(stored: GatewayBench, seed: int) -> None:
    """Sound and broken requests, cut anywhere, on connections that the client leaves anytime."""
    chance = random.Random(seed)
    wires = [*BROKEN.values(), HEAD + LENGTH % len(BODY) + BODY]

    async def one() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", stored.port)
        data = bytearray(chance.choice(wires))
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        cut = chance.randrange(len(data) + 1)
        for piece in (data[:cut], data[cut:]):
            writer.write(piece)
            await asyncio.sleep(chance.random() * 0.01)
        writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(50)))
    await until(lambda: stored.gateway.active_requests == 0)
    assert (await stored.chat()).status_code == 200
