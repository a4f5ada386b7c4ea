"""Many generations over one GenerateMany call of one backend.

A message of the service carries what one engine step produced for every request; here it is dealt
out to their readers. What a slow one has not taken waits in its inbox, texts merged, up to a bound
at which its request ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from antiphon.llm.v1 import generate_pb2
from antiphon_core.errors import DeadlineExceeded
from antiphon_core.rpc.context import current
from antiphon_core.rpc.errors import from_status

from antiphon_gateway.clients.shared import SharedCall, SharedStream
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


class GenerationMultiplexer:
    """Starts generations on the open call, opening one where there is none.

    Args:
        open_call: begins a GenerateMany call.
        inbox_bytes: what a reader may fall behind.
    """

    def __init__(self, open_call: Callable[[], Any], inbox_bytes: int = INBOX_BYTES) -> None:
        self._open_call = open_call
        self._inbox_bytes = inbox_bytes
        self._call: _GenerationCall | None = None

    def start(self, request: GenerateRequest) -> MultiplexedGeneration:
        """Starts a generation for the current request context."""
        if self._call is None or self._call.is_over:
            self._call = _GenerationCall(self._open_call, "llm")
        return MultiplexedGeneration(self._call, request, self._inbox_bytes)

    def close(self) -> None:
        """Ends the call and every generation on it."""
        if self._call is not None:
            self._call.close()


class MultiplexedGeneration(SharedStream[GenerateEvent]):
    """The events of one request; used as every GenerationStream is."""

    kind = "generation"

    def __init__(self, call: _GenerationCall, request: GenerateRequest, limit: int) -> None:
        context = current()
        timeout = context.remaining() if request.timeout is None else request.timeout
        super().__init__(call, timeout)
        self._limit = limit
        self._bytes = 0
        call.send(convert.start_to_proto(self.id, request, context, timeout))

    def add_text(self, choice: int, text: str, token_count: int) -> None:
        """Appends visible text, to the last event where that is plain text of the choice."""
        last = self._inbox[-1] if self._inbox else None
        if isinstance(last, Delta) and last.takes_text_of(choice):
            last.text += text
            last.token_count += token_count
            self._grow(len(text))
        else:
            self._put(Delta(choice, text, token_count=token_count))
            self._grow(_EVENT_BYTES + len(text))

    def add(self, event: GenerateEvent) -> None:
        """Appends an event."""
        if isinstance(event, Accepted):
            self._is_accepted = True
        elif isinstance(event, Completed):
            self._end()
        self._put(event)
        self._grow(_size(event))

    def _taken(self, event: GenerateEvent) -> None:
        # Mostly the only one: its size need not be asked for.
        self._bytes = self._bytes - _size(event) if self._inbox else 0

    def _grow(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._limit:
            self.abandon(
                DeadlineExceeded(
                    f"the reader is more than {self._limit} bytes behind the model",
                    reason="INPUT_IDLE",
                    metadata={"limit": str(self._limit)},
                )
            )


class _GenerationCall(SharedCall[MultiplexedGeneration]):
    def __init__(self, open_call: Callable[[], Any], service: str) -> None:
        self._outbox: deque[generate_pb2.GenerateManyRequest] = deque()
        super().__init__(open_call, service)

    def send(self, message: generate_pb2.GenerateManyRequest) -> None:
        """Queues a message; messages leave in order."""
        self._outbox.append(message)
        self._has_outgoing.set()

    def cancel(self, stream_id: str) -> None:
        if not self.is_over:
            self.send(convert.cancel_to_proto(stream_id))

    def _deal(self, message: generate_pb2.GenerateManyResponse) -> Iterator[None]:
        generations = self._streams
        for stream_id, choice, text, count in zip(
            message.stream_ids, message.choices, message.texts, message.token_counts, strict=True
        ):
            generation = generations.get(stream_id)
            if generation is not None:
                generation.add_text(choice, text, count)
                yield
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
            yield

    def _next_message(self) -> generate_pb2.GenerateManyRequest | None:
        return self._outbox.popleft() if self._outbox else None

    def _unsent(self) -> set[str]:
        return {message.start.stream_id for message in self._outbox}


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
