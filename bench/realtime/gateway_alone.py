"""The gateway between scripted backends and many connections: what it adds, and what it keeps."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import psutil

from bench.realtime.raw import RawClient, append_frame, event_frame
from bench.rest.processes import cpu_seconds, free_port, gateway, quantile, wait_until_served

RATE = 24_000
FRAME_MS = 20
LOUD = b"\x00\x40"
BURST_MS = 100
QUIET_MS = (1000, 2500)
"""Silence between bursts; 500 ms of it end a turn."""
QUIET_FRAME = append_frame(bytes(2 * RATE * FRAME_MS // 1000))
LOUD_FRAME = append_frame(LOUD * (RATE * FRAME_MS // 1000))
READY_S = 30.0


@asynccontextmanager
async def gateway_before_fakes(pin: bool) -> AsyncIterator[tuple[int, int]]:
    """A gateway process before scripted backends; its port and process id.

    Args:
        pin: give the gateway the first core, and everything else the others.
    """
    fakes = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.realtime.backends"), stdout=asyncio.subprocess.PIPE
    )
    assert fakes.stdout is not None
    own = psutil.Process()
    cores = own.cpu_affinity() or []
    try:
        target = (await asyncio.wait_for(fakes.stdout.readline(), READY_S)).decode().strip()
        port = free_port()
        with gateway(port, [target]) as child:
            if pin and len(cores) > 1:
                psutil.Process(child.pid).cpu_affinity(cores[:1])
                own.cpu_affinity(cores[1:])
                psutil.Process(fakes.pid).cpu_affinity(cores[1:])
            await asyncio.to_thread(wait_until_served, port)
            yield port, child.pid
    finally:
        own.cpu_affinity(cores)
        fakes.terminate()
        await fakes.wait()


async def opened(port: int, **session: object) -> RawClient:
    """A session with its settings; waits while the recogniser is not known yet."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            client = await RawClient.open(port)
            break
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
    client.send(event_frame("session.update", session={"type": "realtime", **session}))
    while b'"session.updated"' not in await client.receive():
        pass
    return client


@dataclass
class _Talker:
    """One connection: bursts of speech, and how long each took to be told of."""

    client: RawClient
    chance: random.Random
    delays: list[float] = field(default_factory=list)
    missed: int = 0
    _left: int = 0
    _loud: bool = False
    _since: float | None = None

    def tick(self) -> None:
        """Sends the next frame."""
        if self._left == 0:
            self._loud = not self._loud
            length = BURST_MS if self._loud else self.chance.randint(*QUIET_MS)
            self._left = length // FRAME_MS
            if self._loud:
                self.missed += self._since is not None
                self._since = time.perf_counter()
        self._left -= 1
        self.client.send(LOUD_FRAME if self._loud else QUIET_FRAME)

    async def listen(self) -> None:
        """Reads events until the end."""
        with suppress(asyncio.IncompleteReadError):
            while True:
                event = await self.client.receive()
                if b'"input_audio_buffer.speech_started"' in event and self._since is not None:
                    self.delays.append(time.perf_counter() - self._since)
                    self._since = None


async def added_latency(connections: int, seconds: float) -> dict[str, float]:
    """From an append with the first loud sample to its speech_started, at the client, in ms.

    The scripted recogniser tells of speech as soon as it gets the sample, so that this is what the
    gateway and two hops on this machine take; the recogniser's own microseconds are in it.
    """
    detection = {"type": "server_vad", "create_response": False, "silence_duration_ms": 500}
    audio = {"input": {"turn_detection": detection, "transcription": None}}
    async with gateway_before_fakes(pin=True) as (port, pid):
        talkers = [
            _Talker(await opened(port, audio=audio), random.Random(number))
            for number in range(connections)
        ]
        listeners = [asyncio.create_task(talker.listen()) for talker in talkers]
        await _ticks(talkers, seconds / 5)
        for talker in talkers:
            talker.delays.clear()
        cpu, wall = cpu_seconds(pid), time.perf_counter()
        late = await _ticks(talkers, seconds)
        spent, wall = cpu_seconds(pid) - cpu, time.perf_counter() - wall
        for listener in listeners:
            listener.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)
    delays = [delay * 1000 for talker in talkers for delay in talker.delays]
    delays = delays or [float("inf")]
    return {
        "connections": connections,
        "samples": len(delays),
        "missed": sum(talker.missed for talker in talkers),
        "p50": quantile(delays, 0.5),
        "p99": quantile(delays, 0.99),
        "gateway_us_per_append": spent / (connections * seconds * 1000 / FRAME_MS) * 1e6,
        "gateway_cpu_share": spent / wall,
        "generator_late_p99": quantile(late, 0.99),
    }


async def _ticks(talkers: list[_Talker], seconds: float) -> list[float]:
    """Each talker sends every 20 ms, spread over them; how late each millisecond was, in ms."""
    late = []
    start = time.perf_counter()
    for step in range(int(seconds * 1000)):
        due = start + step / 1000
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        elif step % FRAME_MS == 0:
            await asyncio.sleep(0)
        late.append(max(0.0, time.perf_counter() - due) * 1000)
        for talker in talkers[step % FRAME_MS :: FRAME_MS]:
            talker.tick()
    return late


async def memory_slope(connections: int, speed: float, seconds: float) -> dict[str, float]:
    """Growth of the gateway's memory for an hour of one connection's audio.

    Every ten seconds of audio hold a spoken turn with its reply, whose items the client deletes
    afterwards; what remains is what a frame or a turn leaves behind.

    Args:
        connections: at once.
        speed: seconds of audio for each second of the clock.
        seconds: of the clock; the first third warms up.
    """
    async with gateway_before_fakes(pin=False) as (port, pid):
        process = psutil.Process(pid)
        clients = [await opened(port) for _ in range(connections)]
        loops = [asyncio.create_task(_live(client, speed)) for client in clients]
        await asyncio.sleep(seconds / 3)
        warm = process.memory_info().rss
        start = time.perf_counter()
        samples = []
        while time.perf_counter() - start < seconds * 2 / 3:
            await asyncio.sleep(0.5)
            samples.append(process.memory_info().rss)
            for loop in loops:
                if loop.done():
                    loop.result()
        hours = (time.perf_counter() - start) * speed / 3600 * connections
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        for client in clients:
            client.close()
    tail = sorted(samples[-max(1, len(samples) // 10) :])
    grown = tail[len(tail) // 2] - warm
    return {
        "connections": connections,
        "speed": speed,
        "connection_hours": hours,
        "warm_mib": warm / 2**20,
        "grown_mib": grown / 2**20,
        "mib_per_connection_hour": grown / 2**20 / hours,
    }


async def _live(client: RawClient, speed: float) -> None:
    """Ten seconds of audio again and again, at a pace."""
    second = bytes(2 * RATE)
    speech, silence = append_frame(LOUD * RATE), append_frame(second)
    hearing = asyncio.create_task(_forget(client))
    due = time.perf_counter()
    try:
        while not hearing.done():
            for place in range(10):
                client.send(speech if place == 0 else silence)
                await client.drain()
                due += 1 / speed
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
        hearing.result()
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


async def _forget(client: RawClient) -> None:
    """Deletes every item that is done."""
    while True:
        event = await client.receive()
        if b'"conversation.item.done"' in event[:300]:
            item = json.loads(event)
            if item["type"] == "conversation.item.done":
                client.send(event_frame("conversation.item.delete", item_id=item["item"]["id"]))
