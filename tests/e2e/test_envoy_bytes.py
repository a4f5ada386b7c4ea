"""The edge before plain servers: delay of frames, large bodies, retries, silence, TLS, caps."""

from __future__ import annotations

import asyncio
import signal
import ssl
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import httpx
import pytest
from antiphon.vocoder.v1 import vocoder_service_pb2 as vocoder
from antiphon.vocoder.v1 import vocoder_service_pb2_grpc
from antiphon_cli.edge.render import ProxyPlan, Target, Timings, Tls, render_tls_secret
from support.edge import FAST, Envoy, channel, envoy, eventually, ports, start
from support.plain_http import PlainServer

MEGABYTE = 1 << 20
ADDED_S = 0.005
"""Most that the edge may add to a frame."""


@dataclass
class Bench:
    """An edge before servers of this process."""

    proxy: Envoy
    servers: list[PlainServer]


@asynccontextmanager
async def edge(folder: Path, servers: int = 1, **plan: object) -> AsyncIterator[Bench]:
    numbers = ports(4 + servers)
    targets = [Target("127.0.0.1", number) for number in numbers]
    made = [PlainServer(target.port) for target in targets[4:]]
    for server in made:
        await server.start()
    rendered = ProxyPlan(
        admin=targets[0],
        edge=targets[1],
        llm=(targets[2],),
        vocoder=(targets[3],),
        gateway=tuple(targets[4:]),
        **({"timings": FAST} | plan),
    )
    try:
        async with envoy(folder, rendered) as proxy:
            await proxy.wait_healthy("gateway", {target.port for target in targets[4:]})
            yield Bench(proxy, made)
    finally:
        for server in made:
            await server.stop()


async def test_frames_are_passed_on_one_by_one_and_at_once(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Frames carry the time of their write; through the edge and past it, in turns."""
    async with edge(tmp_path) as bench:
        past = f"http://127.0.0.1:{bench.servers[0].port}"
        delays: dict[str, list[float]] = {past: [], bench.proxy.url: []}
        for url in (past, bench.proxy.url) * 2:
            delays[url] += await frame_delays(url)
    added = statistics.median(delays[bench.proxy.url]) - statistics.median(delays[past])
    # On a busy machine a reader may find two where one was written after the other.
    assert len(delays[bench.proxy.url]) >= 0.9 * len(delays[past]), "frames were merged"
    record_property("added_frame_ms", added * 1000)
    assert added < ADDED_S, f"{added * 1000:.2f} ms"


async def frame_delays(url: str) -> list[float]:
    """Seconds from the write of each frame to its arrival."""
    delays = []
    async with httpx.AsyncClient(timeout=30) as http:
        async with http.stream("GET", f"{url}/v1/frames") as stream:
            async for chunk in stream.aiter_raw():
                now = time.monotonic()
                stamps = [float(x) for x in chunk.decode().split("data: ") if x.strip()]
                delays.append(now - stamps[-1])
                assert len(stamps) == 1 or now - stamps[0] > 0.015, "held back to be merged"
    return delays


async def test_a_body_of_a_megabyte_passes_both_ways(tmp_path: Path) -> None:
    body = bytes(range(256)) * (MEGABYTE // 256)
    async with edge(tmp_path) as bench, httpx.AsyncClient(timeout=30) as http:
        answer = await http.post(f"{bench.proxy.url}/v1/echo", content=body)
    assert answer.content == body


async def test_a_refusal_before_work_is_tried_at_the_other_gateway(tmp_path: Path) -> None:
    """Once each, and the body arrives whole."""
    body = b"x" * 300_000
    async with edge(tmp_path, servers=2) as bench, httpx.AsyncClient(timeout=30) as http:
        first, second = bench.servers
        first.refuses = True
        for _ in range(8):
            answer = await http.post(f"{bench.proxy.url}/v1/echo", content=body)
            assert (answer.status_code, len(answer.content)) == (200, len(body))
        assert first.refused, "none was tried there first"
        assert second.served == 8
        second.refuses = True
        answer = await http.post(f"{bench.proxy.url}/v1/echo", content=body)
        assert answer.status_code == 503


async def test_a_plain_503_is_not_tried_again(tmp_path: Path) -> None:
    async with edge(tmp_path, servers=2) as bench, httpx.AsyncClient(timeout=30) as http:
        answer = await http.post(f"{bench.proxy.url}/v1/overloaded", content=b"x")
        assert answer.status_code == 503
        assert sum(server.served for server in bench.servers) == 1


async def test_an_answer_in_one_piece_may_take_minutes(tmp_path: Path) -> None:
    """Two hundred seconds on a clock a hundred times as fast."""
    timings = replace(Timings().scaled(0.01), health_timeout_s=3.0)
    async with edge(tmp_path, timings=timings) as bench, httpx.AsyncClient(timeout=30) as http:
        answer = await http.post(f"{bench.proxy.url}/v1/silent", content=b"text")
        assert (answer.status_code, answer.content) == (200, b"text")


async def test_the_proxy_answers_errors_of_its_own_in_the_shape_of_the_gateway(
    tmp_path: Path,
) -> None:
    """An answer that came too late, and one that nobody is there to give."""
    timings = replace(FAST, api_idle_s=0.3)
    async with edge(tmp_path, timings=timings) as bench, httpx.AsyncClient(timeout=30) as http:
        url, headers = bench.proxy.url, {"x-request-id": "mine"}
        answers = [await http.post(f"{url}/v1/silent", headers=headers)]
        await bench.servers[0].stop()
        answers.append(await http.post(f"{url}/v1/small", headers=headers))
    assert [answer.status_code for answer in answers] == [504, 503]
    for answer in answers:
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-request-id"] == "mine"
        error = answer.json()["error"]
        assert (set(error), error["type"]) == ({"message", "type", "param", "code"}, "server_error")


async def test_more_connections_than_the_cap_are_refused(tmp_path: Path) -> None:
    async with edge(tmp_path, max_connections=3) as bench:
        port = bench.proxy.plan.edge.port
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        for _, writer in opened:
            writer.write(b"GET /v1/small HTTP/1.1\r\nhost: x\r\n\r\n")
        heads = [await head_of(reader) for reader, _ in opened]
        assert sum(head.startswith(b"HTTP/1.1 200") for head in heads) == 3
        assert sum(not head for head in heads) == 3
        for _, writer in opened:
            writer.close()


async def head_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(12), 20)
    except ConnectionError:
        return b""


async def test_certificates_are_replaced_without_a_restart(tmp_path: Path) -> None:
    certificate(tmp_path, "first.test")
    secret = tmp_path / "secret.yaml"
    secret.write_text(render_tls_secret(str(tmp_path / "chain.pem"), str(tmp_path / "key.pem")))
    async with edge(tmp_path, tls=Tls(str(secret))) as bench:
        port = bench.proxy.plan.edge.port
        assert await served_name(port, "h2") == ("first.test", "h2")
        assert await served_name(port, "http/1.1") == ("first.test", "http/1.1")
        with warnings.catch_warnings(action="ignore"):
            with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
                await served_name(port, "h2", newest=ssl.TLSVersion.TLSv1_1)
        other = tmp_path / "next"
        other.mkdir()
        certificate(other, "second.test")
        replaced = tmp_path / "secret.new"
        replaced.write_text(render_tls_secret(str(other / "chain.pem"), str(other / "key.pem")))
        replaced.rename(secret)
        deadline = time.monotonic() + 30
        while (await served_name(port, "h2"))[0] != "second.test":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def served_name(
    port: int, protocol: str, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> tuple[str, str | None]:
    """Name in the certificate, and the protocol that was agreed on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    if newest < ssl.TLSVersion.TLSv1_2:
        context.minimum_version = newest
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.maximum_version = newest
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    connection = writer.get_extra_info("ssl_object")
    names = ("first.test", "second.test")
    der = connection.getpeercert(binary_form=True)
    writer.close()
    return next(name for name in names if name.encode() in der), connection.selected_alpn_protocol()


def certificate(folder: Path, name: str) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "chain.pem")),
        ],
        check=True,
        capture_output=True,
    )


@asynccontextmanager
async def voice(folder: Path, timings: Timings) -> AsyncIterator[tuple[Envoy, grpc.aio.Channel]]:
    """An egress before a replica, and a channel to it."""
    numbers = ports(3)
    targets = [Target("127.0.0.1", number) for number in numbers]
    plan = ProxyPlan(
        admin=targets[0],
        egress=targets[1],
        llm=(targets[2],),
        vocoder=(targets[2],),
        timings=timings,
    )
    command = ("-m", "support.replica", str(targets[2].port), "a", str(folder / "executions"))
    child = await start(folder / "a.log", sys.executable, *command)
    try:
        async with envoy(folder, plan) as proxy:
            await proxy.wait_healthy("vocoder", {targets[2].port})
            async with channel(proxy.plan.egress) as calls:
                yield proxy, calls
    finally:
        await child.stop(signal.SIGKILL)


async def silent_call(calls: grpc.aio.Channel, seconds: float) -> list[str | None]:
    """A call on which nobody says anything for so long."""
    stub = vocoder_service_pb2_grpc.VocoderServiceStub(calls)
    call = stub.StreamSpeech()
    await call.write(vocoder.StreamSpeechRequest(config=vocoder.SpeechConfig()))
    kinds = [(await call.read()).WhichOneof("message")]
    await asyncio.sleep(seconds)
    await call.done_writing()
    kinds.append((await call.read()).WhichOneof("message"))
    return kinds


DEFAULT_IDLE_S = 300.0
"""What Envoy cuts a silent stream at unless it is told otherwise."""


async def test_a_call_may_be_silent_for_longer_than_any_timer(tmp_path: Path) -> None:
    """Six minutes on a clock a hundred times as fast."""
    async with voice(tmp_path, Timings().scaled(0.01)) as (_, calls):
        assert await silent_call(calls, 3.6) == ["ready", "finished"]


async def test_the_default_idle_timer_would_cut_it(tmp_path: Path) -> None:
    """The control: the same call, clock and template, with Envoy's own idle timer."""
    timings = replace(Timings(), grpc_idle_s=DEFAULT_IDLE_S).scaled(0.01)
    async with voice(tmp_path, timings) as (proxy, calls):
        with pytest.raises(grpc.aio.AioRpcError):
            await silent_call(calls, 3.6)
        await eventually(proxy.access_log)
        assert [line["flags"] for line in proxy.access_log()] == ["SI"]


@pytest.mark.slow
@pytest.mark.timeout(500)
async def test_a_call_may_be_silent_for_six_minutes(tmp_path: Path) -> None:
    async with voice(tmp_path, Timings()) as (_, calls):
        assert await silent_call(calls, 360) == ["ready", "finished"]
