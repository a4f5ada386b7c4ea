"""Many generations over one GenerateMany stream of one backend.

A message of the service carries what one engine step produced for every request; here it is dealt
out to their readers. The stream is always read, so that a slow reader holds nobody else back: what
it has not taken waits in its own inbox, texts merged, up to a bound at which its request ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc.aio
from antiphon.llm.v1 import generate_pb2
from antiphon_core.errors import (
    AntiphonError,
    Cancelled,
    DeadlineExceeded,
    Internal,
    Unavailable,
)
from antiphon_core.logs import get_logger
from antiphon_core.rpc.context import current
from antiphon_core.rpc.errors import from_status
from antiphon_core.rpc.outcome import failure_of

from antiphon_gateway.clients.stream import once_begun, refused_unstarted
from antiphon_gateway.convert import generation as convert
from antiphon_gateway.domain.generation import (
    Accepted,
    Completed,
    Delta,
    GenerateEvent,
    GenerateRequest,
)

INBOX_BYTES = 1 << 20
"""What a reader may fall behind: about an answer of 200,000 tokens."""

_EVENT_BYTES = 64
_LOGPROB_BYTES = 256

log = get_logger(__name__)


class GenerationMultiplexer:
    """Starts generations on the open stream, opening one where there is none.

    Args:
        open_call: begins a GenerateMany call.
        inbox_bytes: what a reader may fall behind.
    """

    def __init__(self, open_call: Callable[[], Any], inbox_bytes: int = INBOX_BYTES) -> None:
        self._open_call = open_call
        self._inbox_bytes = inbox_bytes
        self._connection: _Connection | None = None

    def start(self, request: GenerateRequest) -> MultiplexedGeneration:
        """Starts a generation for the current request context."""
        if self._connection is None or self._connection.is_over:
            self._connection = _Connection(self._open_call)
        return MultiplexedGeneration(self._connection, request, self._inbox_bytes)

    def close(self) -> None:
        """Ends the stream and every generation on it."""
        if self._connection is not None:
            self._connection.close()


class MultiplexedGeneration:
    """The events of one request; used as every GenerationStream is."""

    def __init__(self, connection: _Connection, request: GenerateRequest, limit: int) -> None:
        self._connection = connection
        self._limit = limit
        self._inbox: deque[GenerateEvent] = deque()
        self._bytes = 0
        self._failure: AntiphonError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_accepted = False
        self.is_over = False
        """Whether nothing more comes from the service; the inbox may still hold events."""
        self._loop = asyncio.get_running_loop()
        context = current()
        timeout = context.remaining() if request.timeout is None else request.timeout
        self._timer = (
            None if timeout is None else self._loop.call_later(timeout, self._expire, timeout)
        )
        self._id = connection.add(self)
        connection.send(convert.start_to_proto(self._id, request, context, timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GenerateEvent:
        """The next event.

        Raises:
            AntiphonError: the request failed, after everything that came before was given.
        """
        while not self._inbox:
            if self._failure is not None:
                raise self._failure
            if self.is_over:
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            await self._waiter
        event = self._inbox.popleft()
        # Mostly the only one: its size need not be asked for.
        self._bytes = self._bytes - _size(event) if self._inbox else 0
        return event

    def cancel(self) -> None:
        """Ends the request at the service; harmless when it is over."""
        if not self.is_over:
            self._connection.cancel(self._id)
            self.fail(Cancelled("the call was cancelled"))

    def add_text(self, choice: int, text: str, token_count: int) -> None:
        """Appends visible text, to the last event where that is plain text of the choice."""
        last = self._inbox[-1] if self._inbox else None
        if isinstance(last, Delta) and last.takes_text_of(choice):
            last.text += text
            last.token_count += token_count
            self._grow(len(text))
        else:
            self._inbox.append(Delta(choice, text, token_count=token_count))
            self._grow(_EVENT_BYTES + len(text))
            self._wake()

    def add(self, event: GenerateEvent) -> None:
        """Appends an event."""
        self._inbox.append(event)
        if isinstance(event, Accepted):
            self._is_accepted = True
        elif isinstance(event, Completed):
            self._end()
        self._grow(_size(event))
        self._wake()

    def fail(self, error: AntiphonError) -> None:
        """Ends the request with an error behind what has come."""
        self._failure = error
        self._end()
        self._wake()

    def lose(self, error: AntiphonError, *, was_sent: bool) -> None:
        """The stream is over: an accepted request should have had its terminal before.

        Args:
            error: why it is over.
            was_sent: whether the service may have got the request.
        """
        if isinstance(error, _EndedInOrder):
            if self._is_accepted:
                error = Internal("the backend ended the stream without its terminal message")
            else:
                error = Unavailable("the llm service is draining", reason="DRAINING")
        elif was_sent:
            error = once_begun(error)
        self.fail(error)

    def _grow(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._limit and not self.is_over:
            self._connection.cancel(self._id)
            self.fail(
                DeadlineExceeded(
                    f"the reader is more than {self._limit} bytes behind the model",
                    reason="INPUT_IDLE",
                    metadata={"limit": str(self._limit)},
                )
            )

    def _expire(self, timeout: float) -> None:
        if not self.is_over:
            self._connection.cancel(self._id)
            self.fail(DeadlineExceeded(f"the generation did not end within {timeout:g} s"))

    def _end(self) -> None:
        self.is_over = True
        self._connection.remove(self._id)
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _EndedInOrder(Unavailable):
    """The service closed the stream with status OK, as it does when it drains."""


class _Connection:
    """One open call: a task reads it, another writes to it."""

    def __init__(self, open_call: Callable[[], Any]) -> None:
        # Outside of the request that happens to be the first: the stream has no tenant, trace
        # or deadline of its own, each start carries its request's.
        blank = contextvars.Context()
        self._call = blank.run(open_call)
        self._numbers = itertools.count(1)
        self._generations: dict[str, MultiplexedGeneration] = {}
        self._outbox: deque[generate_pb2.GenerateManyRequest] = deque()
        self._has_outgoing = asyncio.Event()
        self.is_over = False
        self._tasks = [
            asyncio.create_task(self._read(), context=blank, name="generate-many-read"),
            asyncio.create_task(self._write(), context=blank, name="generate-many-write"),
        ]

    def add(self, generation: MultiplexedGeneration) -> str:
        """Registers a generation under a new id."""
        stream_id = str(next(self._numbers))
        self._generations[stream_id] = generation
        return stream_id

    def remove(self, stream_id: str) -> None:
        """Nothing more is delivered for the id."""
        self._generations.pop(stream_id, None)

    def send(self, message: generate_pb2.GenerateManyRequest) -> None:
        """Queues a message; messages leave in order."""
        self._outbox.append(message)
        self._has_outgoing.set()

    def cancel(self, stream_id: str) -> None:
        """Tells the service that nobody waits for the id any longer."""
        if not self.is_over:
            self.send(convert.cancel_to_proto(stream_id))

    def close(self) -> None:
        """Ends the call."""
        self._call.cancel()

    async def _read(self) -> None:
        error: AntiphonError = Internal("the stream's messages could not be read")
        was_opened = True
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._deal(message)
            error = await failure_of(self._call)
            if await self._call.code() is grpc.StatusCode.OK:
                error = _EndedInOrder(error.message)
        except grpc.aio.AioRpcError:
            error = await failure_of(self._call)
            was_opened = not await refused_unstarted(self._call)
            log.warning("generate_many_lost", reason=error.reason, message=error.message[:300])
        except asyncio.CancelledError:
            error = Cancelled("the connection to the llm service was closed")
        except Exception:
            log.exception("generate_many_unreadable")
        finally:
            self._finish(error, was_opened=was_opened)

    def _deal(self, message: generate_pb2.GenerateManyResponse) -> None:
        generations = self._generations
        for stream_id, choice, text, count in zip(
            message.stream_ids, message.choices, message.texts, message.token_counts, strict=True
        ):
            generation = generations.get(stream_id)
            if generation is not None:
                generation.add_text(choice, text, count)
        for item in message.events:
            generation = generations.get(item.stream_id)
            if generation is None:
                continue
            if item.WhichOneof("event") == "error":
                generation.fail(from_status(item.error))
            else:
                event = convert.response_to_event(item.response)
                if event is not None:
                    generation.add(event)

    async def _write(self) -> None:
        try:
            while True:
                await self._has_outgoing.wait()
                self._has_outgoing.clear()
                while self._outbox:
                    await self._call.write(self._outbox.popleft())
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            pass  # The call is over; its reader learns why.

    def _finish(self, error: AntiphonError, *, was_opened: bool) -> None:
        self.is_over = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._call.cancel()
        unsent = {message.start.stream_id for message in self._outbox}
        for stream_id, generation in list(self._generations.items()):
            generation.lose(error, was_sent=was_opened and stream_id not in unsent)


def _size(event: GenerateEvent) -> int:
    """About what an event weighs."""
    if not isinstance(event, Delta):
        return _EVENT_BYTES
    size = _EVENT_BYTES + len(event.text)
    if not event.is_plain:
        size += len(event.reasoning) + 4 * len(event.token_ids) + 8 * len(event.codes)
        size += sum(len(call.arguments) + _EVENT_BYTES for call in event.tool_calls)
        size += sum(_LOGPROB_BYTES * (1 + len(item.alternatives)) for item in event.logprobs)
    return size
