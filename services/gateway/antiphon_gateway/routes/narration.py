"""A text that a model which writes speech codes speaks itself, in place of a voice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from antiphon_core.errors import AntiphonError, InvalidArgument

from antiphon_gateway.clients import Backends, SpeechStream
from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.domain.generation import (
    ChatInput,
    Delta,
    Finished,
    GenerateEvent,
    GenerateRequest,
    Message,
    Role,
)
from antiphon_gateway.domain.speech import SpeechConfig, SpeechEvent, SpeechFinished
from antiphon_gateway.names import speech_models
from antiphon_gateway.openai.audio import SpeechRequest

NOTE = "voice has no effect: the model speaks with a voice of its own"


def speaking_model(name: str, backends: Backends) -> ModelInfo | None:
    """The language model of a name that writes speech codes; None where the name is empty or that
    of a speech model, and where no such model has it."""
    if not name or name in (*speech_models(backends.voices), *backends.vocoder.model_aliases):
        return None
    models = (model for model in backends.models if model.code_format is not None)
    return next((model for model in models if name in (model.id, *model.aliases)), None)


def narration(request: SpeechRequest, model: ModelInfo, timeout: float) -> GenerateRequest:
    """The generation that speaks a text: its user message, with the instructions as the system's.

    The model's chat template says what becomes of them; a model without one continues the text.

    Raises:
        InvalidArgument: UNSUPPORTED_OPTION, what codes or the model have no place for.
    """
    unsupported = {
        "speed": request.speed not in (None, 1.0),
        "language": bool(request.language),
        "instructions": bool(request.instructions) and not model.chat,
    }
    for name, given in unsupported.items():
        if given:
            raise InvalidArgument(
                f"{name} does not apply to the model {model.id}, which speaks itself",
                reason="UNSUPPORTED_OPTION",
                field=name,
            )
    text: ChatInput | str = request.input
    if model.chat:
        messages = [Message(Role.USER, (request.input,))]
        if request.instructions:
            messages.insert(0, Message(Role.SYSTEM, (request.instructions,)))
        text = ChatInput(messages)
    return GenerateRequest(input=text, model=model.id, timeout=timeout, speech=True)


@asynccontextmanager
async def narrated(
    generate: GenerateRequest, config: SpeechConfig, backends: Backends
) -> AsyncIterator[AsyncIterator[SpeechEvent]]:
    """The speech stream of a generation, fed inside the block while the model writes.

    Raises:
        AntiphonError: the codec's while iterating, and the model's behind what it had spoken.
    """
    async with (
        backends.llm.generate(generate) as events,
        backends.vocoder.stream(config) as stream,
    ):
        feeding = asyncio.create_task(_feed(events, stream))
        try:
            yield _behind(stream, feeding)
        finally:
            feeding.cancel()
            with suppress(asyncio.CancelledError, AntiphonError):
                await feeding


async def _feed(events: AsyncIterator[GenerateEvent], stream: SpeechStream) -> None:
    """Sends the codes as they are written; input ends with the model's, however that ends."""
    try:
        async for event in events:
            if isinstance(event, Finished) and event.error is not None:
                raise event.error
            if isinstance(event, Delta) and event.codes:
                await stream.send_codes(event.codes)
    finally:
        await stream.end_input()


async def _behind(stream: SpeechStream, feeding: asyncio.Task[None]) -> AsyncIterator[SpeechEvent]:
    """The stream's events; in place of its end the error of what fed it."""
    async for event in stream:
        if isinstance(event, SpeechFinished):
            await feeding
        yield event
