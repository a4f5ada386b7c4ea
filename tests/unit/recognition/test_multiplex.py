"""Streams of a shared call: idle ones, a full service and a drain, with a worker driven by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.rpc.errors import from_status
from antiphon_vocoder.recognition import messages as wire
from antiphon_vocoder.recognition.config import RecognitionSettings
from antiphon_vocoder.recognition.multiplex import RecognitionMultiplexer
from antiphon_vocoder.recognition.service import RecognitionRuntime
from support.waiting import until

Many = pb.StreamingRecognizeManyRequest


class HandWorker:
    """Is ready at once, opens every stream and says what a test has it say."""

    pid = None
    restarts = 0

    def __init__(self, *, on_message: Any, **_: Any) -> None:
        self.say = on_message
        self.told: list[object] = []

    async def start(self) -> None:
        info = wire.RecognizerInfo(languages=["en"], translates=False)
        self.say(wire.WorkerReady(info, "silero", 0.1))

    async def stop(self, grace: float) -> None:
        pass

    def send(self, message: object) -> None:
        self.told.append(message)
        if isinstance(message, wire.OpenStream):
            self.say(wire.StreamReady(message.stream, "silero", False, "phrase"))
        elif isinstance(message, wire.EndInput):
            self.say(wire.StreamFinished(message.stream, 0.0, 0))


class Bench:
    """A call of a runtime."""

    def __init__(self, settings: RecognitionSettings) -> None:
        self.lifecycle = Lifecycle()
        self.runtime = RecognitionRuntime(settings, worker=self._make_worker)
        self.requests: asyncio.Queue[Many | None] = asyncio.Queue()
        self.events: list[tuple[str, str]] = []
        """Stream, and kind of message or reason of error."""
        self.credit: Counter[str] = Counter()

    def _make_worker(self, **wiring: Any) -> Any:
        self.worker = HandWorker(**wiring)
        return self.worker

    async def start(self) -> None:
        await self.runtime.start(self.lifecycle)
        self.lifecycle.ready()
        self.call = asyncio.create_task(self._run())

    def act(self, name: str, **action: Any) -> None:
        self.requests.put_nowait(Many(actions=[pb.StreamAction(stream_id=name, **action)]))

    async def _run(self) -> None:
        async def requests() -> AsyncIterator[Many]:
            while (request := await self.requests.get()) is not None:
                yield request

        async for message in RecognitionMultiplexer(self.runtime).run(requests()):
            for name, count in zip(message.credit_stream_ids, message.credit_bytes, strict=True):
                self.credit[name] += count
            for event in message.events:
                kind = (
                    from_status(event.error).reason
                    if event.HasField("error")
                    else event.message.WhichOneof("message") or ""
                )
                self.events.append((event.stream_id, kind))


async def started(**settings: Any) -> Bench:
    bench = Bench(RecognitionSettings(**settings))
    await bench.start()
    return bench


START = pb.StartRecognition()
END = pb.EndRecognitionInput()


async def test_a_stream_that_says_nothing_ends_alone() -> None:
    bench = await started(stream_idle_seconds=1.5)
    bench.act("quiet", start=START)
    bench.act("ended", start=START)
    bench.act("loud", start=START)

    async def talk() -> None:
        while True:
            bench.requests.put_nowait(Many(stream_ids=["loud"], audio=[b"xx"]))
            await asyncio.sleep(0.01)

    talking = asyncio.create_task(talk())
    await until(lambda: ("quiet", "INPUT_IDLE") in bench.events)
    assert ("loud", "ready") in bench.events
    assert ("loud", "INPUT_IDLE") not in bench.events
    talking.cancel()
    bench.call.cancel()
    await until(lambda: not bench.runtime.gauges()["recognition_streams"])


async def test_a_full_service_refuses_one_stream() -> None:
    bench = await started(max_streams=1)
    bench.act("first", start=START)
    bench.act("second", start=START)
    await until(lambda: ("second", "SLOTS_FULL") in bench.events)
    bench.act("first", end_input=END)
    await until(lambda: ("first", "finished") in bench.events)
    bench.act("third", start=START)
    await until(lambda: ("third", "ready") in bench.events)
    bench.call.cancel()


async def test_a_drain_lets_streams_end_and_ends_the_call_behind_them() -> None:
    bench = await started()
    bench.act("old", start=START)
    await until(lambda: ("old", "ready") in bench.events)
    bench.lifecycle.draining()
    bench.act("new", start=START)
    await until(lambda: ("new", "DRAINING") in bench.events)
    assert not bench.call.done()
    bench.act("old", end_input=END)
    await asyncio.wait_for(bench.call, 10)
    assert bench.events[-1] == ("old", "finished")


async def test_credit_is_what_the_worker_has_taken() -> None:
    bench = await started()
    bench.act("a", start=START)
    bench.act("b", start=START)
    await until(lambda: ("b", "ready") in bench.events)
    first, second = (m.stream for m in bench.worker.told if isinstance(m, wire.OpenStream))
    for stream, count in ((first, 500), (second, 7), (first, 20)):
        bench.worker.say(wire.Consumed(stream, count))
    await until(lambda: bench.credit == {"a": 520, "b": 7})
    bench.call.cancel()
