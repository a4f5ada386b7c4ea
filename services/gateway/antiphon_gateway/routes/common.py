"""What the generation routes share: admission, streaming and collecting."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from antiphon_core import metrics
from antiphon_core.errors import AntiphonError, Internal
from antiphon_core.logs import get_logger
from antiphon_core.request_context import lower_priority

from antiphon_gateway.domain.generation import (
    Accepted,
    Completed,
    Delta,
    Finished,
    GenerateEvent,
    TokenLogprob,
)
from antiphon_gateway.http import Receive, Scope, read_body
from antiphon_gateway.identity.principal import current_principal
from antiphon_gateway.openai.chat_output import error_frame
from antiphon_gateway.openai.common import (
    FinishReasonName,
    Timing,
    Usage,
    finish_reason_of,
    timing_of,
    usage_of,
)
from antiphon_gateway.openai.decode import decode_body, header_text
from antiphon_gateway.openai.errors import ErrorBody, error_object
from antiphon_gateway.openai.fields import Policies
from antiphon_gateway.sse import DONE, ReadAhead, StreamWriter

if TYPE_CHECKING:
    from antiphon_gateway.app import Gateway

Wire = TypeVar("Wire")

log = get_logger(__name__)

_stream_failures = metrics.counter(
    "http_stream_failures_total", "Streams that failed after their status was sent", ("reason",)
)


def gateway_of(scope: Scope) -> Gateway:
    """The application that serves this request."""
    return scope["app"]


def strict_fields(gateway: Gateway) -> bool:
    """Whether unknown fields of the current request are refused."""
    return gateway.settings.strict_fields or current_principal().strict_fields


async def read_request(
    scope: Scope,
    receive: Receive,
    wire_type: type[Wire],
    policies: Policies,
    endpoint: str,
    *,
    strict: bool = False,
) -> tuple[Wire, list[tuple[bytes, bytes]]]:
    """Reads and validates a JSON body, refusing unknown fields where ``strict`` or the
    deployment says so; see ``decode_body``."""
    settings = gateway_of(scope).settings
    limits = settings.limits
    body = await read_body(receive)
    request, headers = decode_body(
        body,
        wire_type,
        policies,
        endpoint=endpoint,
        max_depth=limits.json_depth,
        strict_fields=strict or strict_fields(gateway_of(scope)),
    )
    if (
        getattr(request, "priority", None) == "batch"
        or getattr(request, "service_tier", None) == "flex"
    ):
        lower_priority()
    return request, headers


def model_name(model: str | None, lora: str | None) -> str:
    """The name to resolve: the model, the adapter, or ``model:adapter``."""
    if not lora:
        return model or ""
    return f"{model}:{lora}" if model else lora


def note_headers(
    accepted: Sequence[Accepted], more: Sequence[str] = ()
) -> list[tuple[bytes, bytes]]:
    """The header that tells what was taken but weakened, each note once; none without.

    Args:
        accepted: with the service's notes.
        more: the gateway's own.
    """
    notes = dict.fromkeys([*(note for admission in accepted for note in admission.notes), *more])
    return [(b"x-antiphon-notes", header_text("; ".join(notes)))] if notes else []


def new_id(prefix: str) -> str:
    """A fresh object id."""
    return f"{prefix}-{uuid.uuid4().hex}"


async def first_event(events: AsyncIterator[GenerateEvent]) -> Accepted:
    """Waits for the engine's admission, on which the status is committed.

    Raises:
        AntiphonError: the request was refused.
    """
    async for event in events:
        if isinstance(event, Accepted):
            return event
        break
    raise Internal("the llm service did not begin with its admission")


class Frames(Protocol):
    """The bytes of one endpoint's stream."""

    def delta(self, event: Delta) -> bytes: ...

    def finish(self, choice: int, reason: FinishReasonName) -> bytes: ...

    def usage(self, usage: Usage | None, timing: Timing | None) -> bytes: ...


@dataclass(frozen=True, slots=True)
class StreamReport:
    """What a stream reports at its end."""

    usage: bool = False
    timing: bool = False


async def stream_generation(
    writer: StreamWriter,
    events: AsyncIterator[GenerateEvent],
    frames: Frames,
    report: StreamReport,
) -> None:
    """Writes a generation as events, ``[DONE]`` last; a failure is an error event and no DONE."""
    try:
        await write_events(writer, events, lambda event: frame_of(event, frames, report))
        await writer.write(DONE)
    except AntiphonError as error:
        await write_failure(writer, error)


async def write_events(
    writer: StreamWriter,
    events: AsyncIterator[GenerateEvent],
    frame: Callable[[GenerateEvent], bytes],
) -> None:
    """Writes a generation.

    Each event is written before the next is read, which holds the service back. A reader that
    has blocked once gets what came meanwhile merged.

    Raises:
        AntiphonError: the generation or one of its choices failed.
    """
    async for event in events:
        await writer.write(frame(event))
        if writer.was_blocked:
            break
    async with ReadAhead(events, _size, _merge).running() as ahead:
        while (batch := await ahead.next_batch()) is not None:
            await writer.write(b"".join([frame(item) for item in batch]))


async def write_failure(writer: StreamWriter, error: AntiphonError) -> None:
    """Ends a stream whose status is out with an error event."""
    note_failure(error)
    await writer.write(error_frame(ErrorBody(error_object(error))))


def note_failure(error: AntiphonError) -> None:
    """Counts and logs the failure of a stream whose status is out."""
    _stream_failures.labels(error.reason).inc()
    log.warning("stream_failed", reason=error.reason, message=error.message[:500])


@dataclass
class CollectedChoice:
    """Everything that one choice said."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    """Speech codes, frame after frame."""
    calls: dict[int, list[str]] = field(default_factory=dict)
    """Id, name and joined arguments by index."""
    finish_reason: FinishReasonName | None = None

    @property
    def text(self) -> str:
        """The visible text."""
        return "".join(self.texts)

    def add(self, delta: Delta) -> None:
        """Appends new output."""
        self.texts.append(delta.text)
        self.reasoning.append(delta.reasoning)
        self.logprobs.extend(delta.logprobs)
        self.codes.extend(delta.codes)
        for piece in delta.tool_calls:
            call = self.calls.setdefault(piece.index, ["", "", ""])
            call[0] = call[0] or piece.id
            call[1] = call[1] or piece.name
            call[2] += piece.arguments


@dataclass
class Collected:
    """A whole generation."""

    choices: list[CollectedChoice]
    completed: Completed


async def collect(events: AsyncIterator[GenerateEvent], choice_count: int) -> Collected:
    """Waits for the whole generation.

    Raises:
        AntiphonError: the request or one of its choices failed.
    """
    choices = [CollectedChoice() for _ in range(choice_count)]
    async for event in events:
        if isinstance(event, Delta):
            choices[event.choice].add(event)
        elif isinstance(event, Finished):
            choices[event.choice].finish_reason = finish_reason_of(event)
        elif isinstance(event, Completed):
            return Collected(choices, event)
    raise Internal("the llm service ended without a result")


def finish_of(choice: CollectedChoice) -> FinishReasonName:
    """The choice's finish reason.

    Raises:
        Internal: the service never finished it.
    """
    if choice.finish_reason is None:
        raise Internal("the llm service completed without finishing every choice")
    return choice.finish_reason


def now() -> int:
    """Seconds since the epoch."""
    return int(time.time())


def frame_of(event: GenerateEvent, frames: Frames, report: StreamReport) -> bytes:
    """The bytes of one event; empty where it shows nothing.

    Raises:
        AntiphonError: the event is the failure of a choice.
    """
    if isinstance(event, Delta):
        return frames.delta(event)
    if isinstance(event, Finished):
        return frames.finish(event.choice, finish_reason_of(event))
    if isinstance(event, Completed) and (report.usage or report.timing):
        return frames.usage(
            usage_of(event.usage) if report.usage else None,
            timing_of(event.timings) if report.timing else None,
        )
    return b""


def _size(event: GenerateEvent) -> int:
    return len(event.text) + 64 if isinstance(event, Delta) else 64


def _merge(former: GenerateEvent, event: GenerateEvent) -> bool:
    if (
        isinstance(former, Delta)
        and isinstance(event, Delta)
        and former.takes_text_of(event.choice)
        and event.is_plain
    ):
        former.text += event.text
        former.token_count += event.token_count
        return True
    return False
