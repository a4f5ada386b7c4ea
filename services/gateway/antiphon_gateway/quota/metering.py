"""Puts what backends do on the meter of the request that they do it for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from antiphon_gateway.domain.generation import (
    Accepted,
    ChatInput,
    Completed,
    Delta,
    GenerateEvent,
    GenerateRequest,
)
from antiphon_gateway.domain.recognition import FileFinished, RecognitionFinished
from antiphon_gateway.domain.speech import AudioChunk, SpeechFinished, SpeechReady
from antiphon_gateway.quota.meter import Meter, Reservation, current_meter
from antiphon_gateway.quota.usage import Used

if TYPE_CHECKING:
    from antiphon_gateway.clients.llm import GenerationStream

Response = TypeVar("Response")
Event = TypeVar("Event")

_BYTES_PER_TOKEN = 4
"""Of usual text; the exact count replaces the estimate once the service has told it."""


def metered(
    request: GenerateRequest, begin: Callable[[GenerateRequest], GenerationStream]
) -> GenerationStream:
    """The generation, on the current request's meter if there is one.

    Args:
        request: what is asked for.
        begin: starts it.
    """
    meter = current_meter()
    if meter is None or not meter.is_needed:
        return begin(request)
    return MeteredGeneration(meter, request, begin)


class MeteredGeneration:
    """A generation that begins once its tokens are reserved, and is charged as generated."""

    def __init__(
        self,
        meter: Meter,
        request: GenerateRequest,
        begin: Callable[[GenerateRequest], GenerationStream],
    ) -> None:
        self._meter = meter
        self._request = request
        self._begin = begin
        self._stream: GenerationStream | None = None
        self._reservation: Reservation | None = None
        self._used = Used(requests=1)

    async def __aenter__(self) -> Self:
        """Raises ResourceExhausted where a quota refuses, and what beginning raises."""
        request = self._request
        most = request.stop.max_tokens
        output = None if most is None else most * request.choice_count
        self._reservation = await self._meter.reserve(prompt_estimate(request.input), output)
        try:
            self._stream = self._begin(request)
            await self._stream.__aenter__()
        except BaseException:
            self._reservation.settle(request.model, Used())
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._stream is not None and self._reservation is not None
        self._reservation.settle(self._request.model, self._used)
        await self._stream.__aexit__(kind, error, traceback)

    def __aiter__(self) -> AsyncIterator[GenerateEvent]:
        return self

    async def __anext__(self) -> GenerateEvent:
        assert self._stream is not None
        event = await self._stream.__anext__()
        if isinstance(event, Delta):
            self._used.output_tokens += event.token_count
        elif isinstance(event, Accepted):
            self._used.prompt_tokens = event.prompt_tokens
        elif isinstance(event, Completed):
            usage = event.usage
            self._used.prompt_tokens = usage.prompt_tokens
            self._used.cached_tokens = usage.cached_tokens
            self._used.output_tokens = usage.output_tokens
        return event

    def cancel(self) -> None:
        """Ends the generation at the service."""
        if self._stream is not None:
            self._stream.cancel()


@asynccontextmanager
async def read_metered(model: str, prompts: Sequence[str | Sequence[int]]) -> AsyncIterator[Used]:
    """Reserves prompts of which no token is drawn; the block enters what they had.

    Nothing is charged where the block raises.

    Raises:
        ResourceExhausted: a quota refuses.
    """
    used = Used(requests=1)
    meter = current_meter()
    if meter is None:
        yield used
        return
    reservation = await meter.reserve(sum(map(prompt_estimate, prompts)), 0)
    try:
        yield used
    except BaseException:
        used = Used()
        raise
    finally:
        reservation.settle(model, used)


def prompt_estimate(source: ChatInput | str | Sequence[int]) -> int:
    """About how many tokens a prompt has, before the service has counted them."""
    if isinstance(source, str):
        return _text_estimate(source)
    if isinstance(source, ChatInput):
        texts = (part for message in source.messages for part in message.parts)
        return sum(_text_estimate(text) for text in texts if isinstance(text, str))
    return len(source)


def _text_estimate(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


def require_audio() -> None:
    """Asked before audio is made or recognised.

    Raises:
        ResourceExhausted: QUOTA_SPENT.
    """
    meter = current_meter()
    if meter is not None:
        meter.check_audio()


def speech_metered(
    convert: Callable[[Response], Event | None], model: str
) -> Callable[[Response], Event | None]:
    """The conversion, which charges audio as it comes."""
    meter = current_meter()
    if meter is None:
        return convert
    meter.charge(model, Used(requests=1))
    rate, charged = 0, 0.0

    def observe(response: Response) -> Event | None:
        nonlocal rate, charged
        event = convert(response)
        seconds = 0.0
        if isinstance(event, AudioChunk) and rate:
            seconds = event.sample_count / rate
        elif isinstance(event, SpeechReady):
            rate = event.output_format.sample_rate
        elif isinstance(event, SpeechFinished):
            seconds = max(0.0, event.audio_seconds - charged)
        if seconds:
            charged += seconds
            meter.charge(model, Used(audio_seconds=seconds))
        return event

    return observe


def recognition_metered(
    convert: Callable[[Response], Event | None], model: str
) -> Callable[[Response], Event | None]:
    """The conversion, which charges the audio at its end."""
    meter = current_meter()
    if meter is None:
        return convert

    def observe(response: Response) -> Event | None:
        event = convert(response)
        if isinstance(event, FileFinished | RecognitionFinished):
            meter.charge(model, Used(requests=1, audio_seconds=event.audio_seconds))
        return event

    return observe
