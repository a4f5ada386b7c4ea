"""GenerateMany: many requests on one stream, one response message per engine step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from antiphon.llm.v1 import generate_pb2
from antiphon_core.errors import AntiphonError, Internal, InvalidArgument, ResourceExhausted
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.logs import get_logger
from antiphon_core.rpc.context import RequestContext
from antiphon_core.rpc.multiplexed import MultiplexedCall, check_ids
from antiphon_core.rpc.options import MESSAGE_LIMIT

from antiphon_llm import convert
from antiphon_llm.front.events import Accepted, Delta, Event
from antiphon_llm.front.generation import Generation
from antiphon_llm.front.service import LlmFront

_STEP_BYTES = 4 << 20
"""A message is closed at this size."""
_SCORE_BYTES = 32
"""A token with its log-probability, generously."""

log = get_logger("multiplex")


class Multiplexer(
    MultiplexedCall[generate_pb2.GenerateManyRequest, generate_pb2.GenerateManyResponse]
):
    """The requests of one stream.

    What an engine step produced for all of them leaves in one message. A failed request ends with
    an error event, the others go on. Requests are prepared side by side, so that a long prompt
    keeps neither a short one nor a cancellation waiting.

    Args:
        front: serves the requests.
        context: of the stream's call.
        lifecycle: a draining process ends the stream when its requests are done.
    """

    def __init__(self, front: LlmFront, context: RequestContext, lifecycle: Lifecycle) -> None:
        super().__init__(lifecycle)
        self._front = front
        self._context = context
        self._live: dict[str, Generation | None] = {}
        """None while a request is prepared."""
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._dirty: dict[str, None] = {}
        self._events: list[generate_pb2.GenerateManyEvent] = []

    @property
    def is_idle(self) -> bool:
        return not self._live and not self._events

    def accept(self, request: generate_pb2.GenerateManyRequest) -> None:
        kind = request.WhichOneof("action")
        if kind == "start":
            self._start(request.start)
        elif kind == "cancel":
            self._cancel(request.cancel.stream_id)
        else:
            raise InvalidArgument(
                "a message needs an action: start or cancel",
                reason="MISSING_FIELD",
                field="action",
            )

    def release(self) -> None:
        for task in self._starting.values():
            task.cancel()
        for generation in self._live.values():
            if generation is not None:
                generation.cancel()

    def _start(self, message: generate_pb2.StartGenerate) -> None:
        stream_id = message.stream_id
        check_ids(stream_id, message.request_id, self._live)
        self._live[stream_id] = None
        self._starting[stream_id] = asyncio.create_task(
            self._begin(message), name=f"generate-many-start-{stream_id}"
        )

    async def _begin(self, message: generate_pb2.StartGenerate) -> None:
        stream_id = message.stream_id
        task = asyncio.current_task()

        def wake() -> None:
            self._dirty[stream_id] = None
            self.wake()

        try:
            self._live[stream_id] = await self._front.generate(
                convert.generation_request(message.request),
                convert.scope_of_start(message, self._context),
                wake=wake,
            )
        except AntiphonError as error:
            self._refuse(stream_id, error)
        except Exception:
            log.exception("generate_many_start_failed")
            self._refuse(stream_id, Internal("the request could not be started"))
        finally:
            # A cancelled id may already belong to a newer request.
            if self._starting.get(stream_id) is task:
                del self._starting[stream_id]

    def _refuse(self, stream_id: str, error: AntiphonError) -> None:
        self._live.pop(stream_id, None)
        self._events.append(convert.error_event(stream_id, error))
        self.wake()

    def _cancel(self, stream_id: str) -> None:
        """The caller wants no more of it: nothing is sent for this id any longer."""
        generation = self._live.pop(stream_id, None)
        self._dirty.pop(stream_id, None)
        starting = self._starting.pop(stream_id, None)
        if starting is not None:
            starting.cancel()
        if generation is not None:
            generation.cancel()

    def gather(self) -> generate_pb2.GenerateManyResponse | None:
        """One message of what has gathered; what would make it too large waits for the next."""
        message = generate_pb2.GenerateManyResponse()
        message.events.extend(self._events)
        self._events.clear()
        size = 0
        while self._dirty and size < _STEP_BYTES:
            stream_id = next(iter(self._dirty))
            del self._dirty[stream_id]
            generation = self._live.get(stream_id)
            if generation is None:
                continue
            events = generation.collect()
            weight = _scores_bytes(events)
            if weight > MESSAGE_LIMIT - _STEP_BYTES:
                generation.cancel()
                self._live.pop(stream_id)
                message.events.append(convert.error_event(stream_id, _too_large()))
                continue
            size += weight
            _append(message, stream_id, events)
            if generation.error is not None:
                message.events.append(convert.error_event(stream_id, generation.error))
            if generation.done:
                del self._live[stream_id]
        if self._dirty:
            self.wake()
        return message if message.stream_ids or message.events else None


def _append(
    message: generate_pb2.GenerateManyResponse, stream_id: str, events: Sequence[Event]
) -> None:
    """Plain text goes to the columns.

    A message's columns are read before its events, so text behind an event stays one.
    """
    plain = True
    for event in events:
        if plain and isinstance(event, Delta) and event.plain:
            message.stream_ids.append(stream_id)
            message.choices.append(event.choice)
            message.texts.append(event.text)
            message.token_counts.append(event.token_count)
        else:
            plain = False
            response = convert.response(event)
            message.events.append(
                generate_pb2.GenerateManyEvent(stream_id=stream_id, response=response)
            )


def _scores_bytes(events: Sequence[Event]) -> int:
    """About what the log-probabilities of a prompt weigh on the wire; nothing else weighs much."""
    first = events[0] if events else None
    if not isinstance(first, Accepted):
        return 0
    return sum(_SCORE_BYTES * (1 + len(item.alternatives)) for item in first.prompt_logprobs)


def _too_large() -> ResourceExhausted:
    return ResourceExhausted(
        "the log-probabilities of the prompt do not fit into a message; ask for fewer "
        "alternatives or a shorter prompt",
        reason="TOO_LARGE",
        field="output.prompt_logprobs",
        metadata={"limit": str(MESSAGE_LIMIT)},
    )
