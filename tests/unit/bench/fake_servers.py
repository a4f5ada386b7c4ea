"""Two small servers on real sockets that say exactly what a test told them to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
from antiphon.llm.v1 import generate_pb2 as pb
from antiphon.llm.v1 import llm_service_pb2 as llm
from antiphon.llm.v1 import llm_service_pb2_grpc
from antiphon_core.errors import AntiphonError, ResourceExhausted
from antiphon_core.rpc.errors import to_status
from grpc_status import rpc_status

REFUSED, SILENT, BROKEN, DELAYED = 1, 2, 3, 4
"""First prompt ids that choose what the fake service does; any other streams to the end."""


class FakeLlm(llm_service_pb2_grpc.LlmServiceServicer):
    """Streams as many tokens as were asked for; ``cancelled`` counts what clients left."""

    def __init__(self) -> None:
        self.seen: list[pb.GenerateRequest] = []
        self.starts: list[pb.StartGenerate] = []
        self.metadata: list[dict[str, str]] = []
        self.cancelled = asyncio.Semaphore(0)

    async def GetModel(self, request, context) -> llm.GetModelResponse:
        return llm.GetModelResponse(model=llm.Model(id="fake", vocabulary_size=40_000))

    async def Generate(self, request, context) -> AsyncIterator[pb.GenerateResponse]:
        self.seen.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        finished = False
        try:
            async for response in self._responses(request):
                yield response
            finished = True
        except AntiphonError as error:
            finished = True
            await context.abort_with_status(rpc_status.to_status(to_status(error)))
        finally:
            if not finished:
                self.cancelled.release()

    async def GenerateMany(self, request_iterator, context):
        outbox: asyncio.Queue[pb.GenerateManyResponse] = asyncio.Queue()
        tasks: dict[str, asyncio.Task[None]] = {}

        async def read() -> None:
            async for message in request_iterator:
                if message.HasField("start"):
                    start = message.start
                    self.starts.append(start)
                    tasks[start.stream_id] = asyncio.create_task(self._one(start, outbox))
                elif not tasks[message.cancel.stream_id].done():
                    tasks[message.cancel.stream_id].cancel()
                    self.cancelled.release()

        reader = asyncio.create_task(read())
        try:
            while True:
                yield await outbox.get()
        finally:
            for task in (reader, *tasks.values()):
                task.cancel()

    async def _one(self, start: pb.StartGenerate, outbox: asyncio.Queue) -> None:
        name = start.stream_id
        try:
            async for response in self._responses(start.request):
                message = pb.GenerateManyResponse()
                if response.HasField("delta"):
                    message.stream_ids.append(name)
                    message.choices.append(0)
                    message.texts.append(response.delta.text)
                    message.token_counts.append(response.delta.token_count)
                else:
                    message.events.append(pb.GenerateManyEvent(stream_id=name, response=response))
                outbox.put_nowait(message)
        except AntiphonError as error:
            event = pb.GenerateManyEvent(stream_id=name, error=to_status(error))
            outbox.put_nowait(pb.GenerateManyResponse(events=[event]))

    async def _responses(self, request: pb.GenerateRequest) -> AsyncIterator[pb.GenerateResponse]:
        kind, asked = request.tokens.ids[0], request.stop.max_tokens
        if kind == REFUSED:
            raise ResourceExhausted("the queue is full", retry_after=1.5)
        yield pb.GenerateResponse(accepted=pb.GenerateAccepted(prompt_tokens=3))
        if kind == SILENT:
            await asyncio.Event().wait()
        yield _delta(2)
        if kind == BROKEN:
            return
        for _ in range(asked - 2):
            if kind == DELAYED:
                await asyncio.sleep(0.002)
            yield _delta(1)
        yield pb.GenerateResponse(finished=pb.ChoiceFinished(reason=pb.FINISH_REASON_LENGTH))
        usage = pb.Usage(prompt_tokens=3, cached_tokens=1, output_tokens=asked)
        yield pb.GenerateResponse(completed=pb.GenerateCompleted(usage=usage))


def _delta(tokens: int) -> pb.GenerateResponse:
    return pb.GenerateResponse(delta=pb.GenerateDelta(text="x", token_count=tokens))


@asynccontextmanager
async def fake_llm() -> AsyncIterator[tuple[FakeLlm, str]]:
    """The service and its address."""
    server = grpc.aio.server()
    service = FakeLlm()
    llm_service_pb2_grpc.add_LlmServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


Handler = Callable[[dict[str, Any]], AsyncGenerator[str | tuple[int, dict[str, str], str], None]]


@asynccontextmanager
async def fake_sse(handler: Handler) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
    """An HTTP/1.1 server whose answers ``handler`` yields for each body: text parts of an event
    stream, or one (status, headers, body). Also yields the requests that it saw."""
    requests: list[dict[str, Any]] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines)
                body = await reader.readexactly(int(headers["content-length"]))
                if first.startswith("GET"):
                    _answer(writer, 200, {}, '{"data": [{"id": "listed"}]}')
                    continue
                request = json.loads(body)
                requests.append({"line": first, "headers": headers, "body": request})
                async with aclosing(handler(request)) as parts:
                    await _stream(writer, parts)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield requests, f"http://127.0.0.1:{port}/v1"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stream(writer: asyncio.StreamWriter, parts: AsyncIterator) -> None:
    begun = False
    async for part in parts:
        if not isinstance(part, str):
            _answer(writer, *part)
            return
        if not begun:
            head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
            begun = True
        data = part.encode()
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()
    writer.write(b"0\r\n\r\n")


def _answer(writer: asyncio.StreamWriter, status: int, headers: dict[str, str], body: str) -> None:
    lines = [f"HTTP/1.1 {status} x", "content-type: application/json"]
    lines += [f"content-length: {len(body)}", *(f"{k}: {v}" for k, v in headers.items())]
    writer.write(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
