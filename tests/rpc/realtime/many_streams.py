"""The shared calls of backends that are scripted one stream at a time."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from antiphon.llm.v1 import generate_pb2 as gen
from antiphon.vocoder.v1 import recognition_service_pb2 as rec
from antiphon_core.errors import AntiphonError, Internal
from antiphon_core.rpc.errors import to_status
from google.rpc.status_pb2 import Status

CREDIT_PIECE = 64 * 1024


class _Streams:
    """The streams of one call, each in a task; what they say waits in one queue."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(
        self,
        stream_id: str,
        responses: AsyncIterator[Any],
        say: Callable[[Any], None],
        refuse: Callable[[Status], None],
    ) -> None:
        async def serve() -> None:
            try:
                async for response in responses:
                    say(response)
            except AntiphonError as error:
                refuse(to_status(error))
            except Exception as error:
                refuse(to_status(Internal(str(error))))

        self._tasks[stream_id] = asyncio.create_task(serve())

    def cancel(self, stream_id: str) -> None:
        if stream_id in self._tasks:
            self._tasks.pop(stream_id).cancel()

    async def run(self, reading: Any) -> AsyncIterator[Any]:
        """What is said, until ``reading`` and every stream have ended or the call is cancelled."""
        reader = asyncio.create_task(reading)
        reader.add_done_callback(lambda _: self.said.put_nowait(None))
        try:
            while True:
                message = await self.said.get()
                if message is not None:
                    yield message
                elif not reader.cancelled():
                    reader.result()
                    await asyncio.gather(*self._tasks.values(), return_exceptions=True)
                    while not self.said.empty():
                        yield self.said.get_nowait()
                    return
        finally:
            ending = [reader, *self._tasks.values()]
            for task in ending:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*ending, return_exceptions=True)


class ManyGenerations:
    """GenerateMany from Generate."""

    @abstractmethod
    def Generate(self, request: Any, context: Any) -> AsyncIterator[gen.GenerateResponse]: ...

    async def GenerateMany(
        self, requests: Any, context: Any
    ) -> AsyncIterator[gen.GenerateManyResponse]:
        streams = _Streams()

        async def read() -> None:
            async for request in requests:
                if request.HasField("cancel"):
                    streams.cancel(request.cancel.stream_id)
                    continue
                start = request.start

                def say(name: str = start.stream_id, **event: Any) -> None:
                    item = gen.GenerateManyEvent(stream_id=name, **event)
                    streams.said.put_nowait(gen.GenerateManyResponse(events=[item]))

                streams.start(
                    start.stream_id,
                    self.Generate(start.request, context),
                    lambda response, say=say: say(response=response),
                    lambda status, say=say: say(error=status),
                )

        async for message in streams.run(read()):
            yield message


class ManyRecognitions:
    """StreamingRecognizeMany from StreamingRecognize; credit comes back in pieces."""

    @abstractmethod
    def StreamingRecognize(
        self, requests: Any, context: Any
    ) -> AsyncIterator[rec.StreamingRecognizeResponse]: ...

    async def StreamingRecognizeMany(
        self, requests: Any, context: Any
    ) -> AsyncIterator[rec.StreamingRecognizeManyResponse]:
        streams = _Streams()
        inputs: dict[str, asyncio.Queue[rec.StreamingRecognizeRequest | None]] = {}

        async def taken(name: str) -> AsyncIterator[rec.StreamingRecognizeRequest]:
            count = 0
            while (message := await inputs[name].get()) is not None:
                yield message
                count += len(message.audio)
                if count >= CREDIT_PIECE:
                    credit = rec.StreamingRecognizeManyResponse(
                        credit_stream_ids=[name], credit_bytes=[count]
                    )
                    streams.said.put_nowait(credit)
                    count = 0

        def start(name: str, config: rec.RecognitionConfig) -> None:
            def say(**event: Any) -> None:
                item = rec.StreamEvent(stream_id=name, **event)
                streams.said.put_nowait(rec.StreamingRecognizeManyResponse(events=[item]))

            inputs[name] = asyncio.Queue()
            inputs[name].put_nowait(rec.StreamingRecognizeRequest(config=config))
            streams.start(
                name,
                self.StreamingRecognize(taken(name), context),
                lambda response: say(message=response),
                lambda status: say(error=status),
            )

        async def read() -> None:
            async for request in requests:
                for name, data in zip(request.stream_ids, request.audio, strict=True):
                    inputs[name].put_nowait(rec.StreamingRecognizeRequest(audio=data))
                for action in request.actions:
                    kind, name = action.WhichOneof("action"), action.stream_id
                    if kind == "start":
                        start(name, action.start.config)
                    elif kind == "message":
                        inputs[name].put_nowait(action.message)
                    elif kind == "end_input":
                        inputs[name].put_nowait(None)
                    else:
                        streams.cancel(name)

        async for message in streams.run(read()):
            yield message
