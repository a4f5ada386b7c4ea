"""POST /v1/audio/speech."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon_core.errors import AntiphonError, Internal, InvalidArgument

from antiphon_gateway.clients import Backends
from antiphon_gateway.config import Limits
from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.domain.speech import (
    AudioChunk,
    AudioFormat,
    SpeechConfig,
    SpeechEvent,
    SpeechFinished,
    SpeechReady,
)
from antiphon_gateway.http import Headers, Receive, Scope, Send, cancel_on_disconnect
from antiphon_gateway.openai.audio import (
    DurationUsage,
    SpeechDelta,
    SpeechDone,
    SpeechRequest,
)
from antiphon_gateway.openai.chat_output import sse_frame
from antiphon_gateway.openai.fields import SPEECH
from antiphon_gateway.routes.common import (
    gateway_of,
    note_headers,
    read_request,
    write_failure,
)
from antiphon_gateway.routes.narration import NOTE, narrated, narration, speaking_model
from antiphon_gateway.sse import StreamWriter

_ENCODINGS = {
    "pcm": "pcm16",
    "wav": "wav",
    "mp3": "mp3",
    "opus": "opus",
    "flac": "flac",
    "aac": "aac",
}
_PCM_SAMPLE_RATE = 24_000
MIME_TYPES = {
    "pcm16": "audio/pcm",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "flac": "audio/flac",
    "aac": "audio/aac",
}


class Speech:
    """The route as a bare ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        request, headers = await read_request(scope, receive, SpeechRequest, SPEECH, "speech")
        limits = gateway.settings.limits
        _check_input(request, limits)
        model = speaking_model(request.model or "", gateway.backends)
        if model is not None:
            generate = narration(request, model, limits.request_seconds)
            config = _code_config(request, model, limits)
            speaking = narrated(generate, config, gateway.backends)
            headers = [*headers, *note_headers([], [NOTE] if request.voice else [])]
        else:
            speaking = _spoken_text(request, gateway.backends, limits)
        writer = StreamWriter(send, limits)
        async with cancel_on_disconnect(receive), speaking as stream:
            ready, first = await _first_audio(stream)
            if request.stream_format == "sse":
                async with writer.watched():
                    await writer.start(headers)
                    await _write_events(writer, stream, first)
            else:
                async with writer.watched(pings=False):
                    await writer.start(headers, _audio_headers(ready))
                    await _write_audio(writer, stream, first)
        await writer.end()


def _check_input(request: SpeechRequest, limits: Limits) -> None:
    if not request.input.strip():
        raise InvalidArgument("input is empty", field="input")
    if len(request.input) > limits.speech_characters:
        raise InvalidArgument(
            f"input has {len(request.input)} characters; at most {limits.speech_characters} "
            "are allowed",
            field="input",
            metadata={
                "limit": str(limits.speech_characters),
                "observed": str(len(request.input)),
            },
        )


@asynccontextmanager
async def _spoken_text(
    request: SpeechRequest, backends: Backends, limits: Limits
) -> AsyncIterator[AsyncIterator[SpeechEvent]]:
    """The speech stream of a voice, with all its input."""
    async with backends.vocoder.stream(_text_config(request, backends, limits)) as stream:
        await stream.send_text(request.input)
        await stream.end_input()
        yield stream


def _text_config(request: SpeechRequest, backends: Backends, limits: Limits) -> SpeechConfig:
    """What a voice is asked for.

    Raises:
        InvalidArgument: unknown voice.
        NotFound: unknown model.
    """
    voice = request.voice
    name = voice.id if voice is not None and not isinstance(voice, str) else voice or ""
    return SpeechConfig(
        voice=backends.vocoder.resolve_voice(name),
        model=backends.vocoder.resolve_model(request.model or ""),
        output_format=_output_format(request),
        speed=request.speed if request.speed is not None else 1.0,
        language=request.language or "",
        instructions=request.instructions or "",
        exact_container=_is_whole_wav(request),
        timeout=limits.request_seconds,
    )


def _code_config(request: SpeechRequest, model: ModelInfo, limits: Limits) -> SpeechConfig:
    """What the codec of a model that speaks itself is asked for."""
    return SpeechConfig(
        output_format=_output_format(request),
        exact_container=_is_whole_wav(request),
        code_format=model.code_format,
        timeout=limits.request_seconds,
    )


def _output_format(request: SpeechRequest) -> AudioFormat:
    encoding = _ENCODINGS[request.response_format or "mp3"]
    return AudioFormat(
        encoding, request.sample_rate or (_PCM_SAMPLE_RATE if encoding == "pcm16" else 0)
    )


def _is_whole_wav(request: SpeechRequest) -> bool:
    """Nobody hears it before its end, so that its sizes can be exact."""
    return request.response_format == "wav" and request.stream_format is None


async def _first_audio(
    stream: AsyncIterator[SpeechEvent],
) -> tuple[SpeechReady, AudioChunk | SpeechFinished]:
    """Waits for the first audio, on which the status is committed.

    Raises:
        AntiphonError: no slot, or the voice failed.
    """
    ready: SpeechReady | None = None
    async for event in stream:
        if isinstance(event, SpeechReady):
            ready = event
        elif isinstance(event, AudioChunk | SpeechFinished):
            if ready is None:
                break
            return ready, event
    raise Internal("the vocoder service sent audio before it was ready")


def _audio_headers(ready: SpeechReady) -> Headers:
    mime_type = ready.mime_type or MIME_TYPES.get(ready.output_format.encoding, "audio/pcm")
    return [
        (b"content-type", mime_type.encode()),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
    ]


async def _write_audio(
    writer: StreamWriter, stream: AsyncIterator[SpeechEvent], first: SpeechEvent
) -> None:
    """The file as it grows; audio waits in the backend while the reader is slow."""
    if isinstance(first, AudioChunk):
        await writer.write(first.data)
        async for event in stream:
            if isinstance(event, AudioChunk):
                await writer.write(event.data)


async def _write_events(
    writer: StreamWriter, stream: AsyncIterator[SpeechEvent], first: SpeechEvent
) -> None:
    try:
        await writer.write(_speech_frame(first))
        if isinstance(first, SpeechFinished):
            return
        async for event in stream:
            await writer.write(_speech_frame(event))
    except AntiphonError as error:
        await write_failure(writer, error)


def _speech_frame(event: SpeechEvent) -> bytes:
    if isinstance(event, AudioChunk):
        return sse_frame(SpeechDelta(b64encode(event.data).decode()))
    if isinstance(event, SpeechFinished):
        return sse_frame(SpeechDone(DurationUsage(round(event.audio_seconds, 3))))
    return b""
