"""Antiphon's LlmService over gRPC: one stream for many requests, or one call for each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
from antiphon.llm.v1 import generate_pb2 as pb
from antiphon.llm.v1 import llm_service_pb2
from antiphon.llm.v1.llm_service_pb2_grpc import LlmServiceStub
from antiphon_core.errors import AntiphonError, Unavailable
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.context import PRIORITY, REQUEST_ID, TENANT, new_request_id
from antiphon_core.rpc.errors import from_status
from antiphon_core.rpc.streams import messages, open_stream, result
from google.protobuf.duration_pb2 import Duration

from bench.load.record import Ended, Record, RequestFailed
from bench.load.workload import Job, Workload

TOKEN_SOURCE = "events: token_count of each delta, totals from usage"


class _LlmTarget:
    """What both forms share: the channel, the request and the reading of its events."""

    token_source = TOKEN_SOURCE

    def __init__(self, address: str, workload: Workload, *, cache: bool = True) -> None:
        self._address = address
        self._workload = workload
        self._cache = cache
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None

    async def open(self) -> dict[str, Any]:
        """Connects and names the model."""
        self._channel = open_channel(self._address)
        self._stub = LlmServiceStub(self._channel)
        try:
            reply = await result(self._stub.GetModel(llm_service_pb2.GetModelRequest(), timeout=10))
        except AntiphonError as error:
            raise _failed(error) from None
        model = reply.model
        if self._workload.vocabulary[1] > model.vocabulary_size:
            raise RequestFailed(
                "INVALID_VALUE",
                f"prompt ids go up to {self._workload.vocabulary[1]}, the model's to "
                f"{model.vocabulary_size}: narrow --vocabulary",
                "INVALID_ARGUMENT",
            )
        return {
            "protocol": type(self).__name__,
            "model": model.id,
            "architecture": model.architecture,
            "quantisation": model.quantisation,
            "fingerprint": model.fingerprint,
            "context_limit": model.context_limit,
        }

    async def close(self) -> None:
        """Ends the channel."""
        if self._channel is not None:
            await self._channel.close()

    def _request(self, job: Job) -> pb.GenerateRequest:
        workload = self._workload
        sampling = pb.SamplingParams(
            temperature=workload.temperature,
            top_p=workload.top_p,
            top_k=workload.top_k,
            min_p=0.0,
            repetition_penalty=1.0,
            seed=job.seed,
        )
        return pb.GenerateRequest(
            tokens=pb.TokenInput(ids=job.prompt_ids),
            sampling=sampling,
            stop=pb.StopParams(max_tokens=job.output_tokens, ignore_eos=True),
            cache_mode=pb.CACHE_MODE_ON if self._cache else pb.CACHE_MODE_OFF,
        )


class GenerateTarget(_LlmTarget):
    """One Generate call per request: the simple form."""

    async def run(self, record: Record) -> None:
        """See Target."""
        job = record.job
        metadata = [(REQUEST_ID, new_request_id())]
        if job.tenant:
            metadata.append((TENANT, job.tenant))
        if job.batch:
            metadata.append((PRIORITY, "batch"))
        call = self._stub.Generate(self._request(job), timeout=job.deadline_s, metadata=metadata)
        try:
            async with open_stream(call):
                if record.leaves:
                    return
                async for response in messages(call):
                    _take(record, response)
                    if record.leaves:
                        return
        except AntiphonError as error:
            raise _failed(error) from None


class GenerateManyTarget(_LlmTarget):
    """All requests multiplexed on a few GenerateMany streams: the cheap form.

    Args:
        streams: GenerateMany calls that share the requests in turn.
    """

    def __init__(
        self, address: str, workload: Workload, *, cache: bool = True, streams: int = 1
    ) -> None:
        super().__init__(address, workload, cache=cache)
        self._streams = [_SharedStream() for _ in range(streams)]
        self._turn = itertools.cycle(self._streams)

    async def open(self) -> dict[str, Any]:
        """Connects, names the model and opens the streams."""
        facts = await super().open()
        for stream in self._streams:
            stream.start(self._stub)
        return facts | {"streams": len(self._streams)}

    async def close(self) -> None:
        """Ends the streams and the channel."""
        for stream in self._streams:
            await stream.close()
        await super().close()

    async def run(self, record: Record) -> None:
        """See Target."""
        stream = next(self._turn)
        if stream.broken:
            stream.start(self._stub)
        job = record.job
        start = pb.StartGenerate(
            stream_id=new_request_id(),
            request=self._request(job),
            tenant=job.tenant,
            batch=job.batch,
        )
        if job.deadline_s is not None:
            start.timeout.CopyFrom(_duration(job.deadline_s))
        await stream.run(start, record)


class _Waiting:
    """One request on a shared stream: woken at its end, not at each token."""

    __slots__ = ("over", "record", "told")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.told = False
        """Whether the service said that the request failed."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, failure: RequestFailed | None = None) -> None:
        if self.over.done():
            return
        if failure is None:
            self.over.set_result(None)
        else:
            self.told = True
            self.over.set_exception(failure)


class _SharedStream:
    """One GenerateMany call and the requests on it; started again after it broke."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self._outgoing: asyncio.Queue[pb.GenerateManyRequest] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None

    @property
    def broken(self) -> bool:
        """Whether the call has ended."""
        return self._reader is None or self._reader.done()

    def start(self, stub: Any) -> None:
        """Opens the call."""
        self._outgoing = asyncio.Queue()
        self._reader = asyncio.create_task(self._read(stub.GenerateMany(self._requests())))

    async def close(self) -> None:
        """Cancels the call."""
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader

    async def run(self, start: pb.StartGenerate, record: Record) -> None:
        """One request from start to end; whatever the way out, the server knows."""
        waiting = self._waiting[start.stream_id] = _Waiting(record)
        self._outgoing.put_nowait(pb.GenerateManyRequest(start=start))
        try:
            if not record.leaves:
                await waiting.over
        finally:
            del self._waiting[start.stream_id]
            if not waiting.told and record.ended is None:
                cancel = pb.CancelGenerate(stream_id=start.stream_id)
                self._outgoing.put_nowait(pb.GenerateManyRequest(cancel=cancel))

    async def _requests(self) -> AsyncIterator[pb.GenerateManyRequest]:
        while True:
            yield await self._outgoing.get()

    async def _read(self, call: Any) -> None:
        failure = Unavailable("the stream ended under the request", reason="STREAM_ENDED")
        try:
            async with open_stream(call):
                async for message in messages(call):
                    self._dispatch(message)
        except AntiphonError as error:
            failure = error
        finally:
            for waiting in self._waiting.values():
                waiting.end(_failed(failure))

    def _dispatch(self, message: pb.GenerateManyResponse) -> None:
        for stream_id, tokens in zip(message.stream_ids, message.token_counts, strict=True):
            waiting = self._waiting.get(stream_id)
            if waiting is not None:
                waiting.record.piece(tokens)
                if waiting.record.leaves:
                    waiting.end()
        for event in message.events:
            waiting = self._waiting.get(event.stream_id)
            if waiting is None:
                continue
            if event.HasField("error"):
                waiting.end(_failed(from_status(event.error)))
                continue
            _take(waiting.record, event.response)
            if waiting.record.ended is not None or waiting.record.leaves:
                waiting.end()


def _take(record: Record, response: pb.GenerateResponse) -> None:
    """Adds one event to the record."""
    kind = response.WhichOneof("event")
    if kind == "delta":
        record.piece(response.delta.token_count)
    elif kind == "finished":
        record.finish_reason = pb.FinishReason.Name(response.finished.reason)
        if response.finished.HasField("error"):
            record.failure = _failed(from_status(response.finished.error))
    elif kind == "completed":
        usage, timings = response.completed.usage, response.completed.timings
        record.ended = Ended(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            queued_s=timings.queued.seconds + timings.queued.nanos / 1e9,
        )


def _failed(error: AntiphonError) -> RequestFailed:
    return RequestFailed(error.reason, error.message, error.code.name, error.retry_after)


def _duration(seconds: float) -> Duration:
    whole = int(seconds)
    return Duration(seconds=whole, nanos=int((seconds - whole) * 1e9))
