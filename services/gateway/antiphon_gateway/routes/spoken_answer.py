"""Chat answers as audio: a finished answer in one piece, or text and voice as they come."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from antiphon_core.errors import AntiphonError, InvalidArgument

from antiphon_gateway.clients import Backends, SpeechStream
from antiphon_gateway.domain.generation import Completed, Delta, Finished, GenerateEvent
from antiphon_gateway.domain.speech import AudioChunk, AudioFormat, SpeechConfig, SpeechReady
from antiphon_gateway.openai.chat import ChatRequest
from antiphon_gateway.openai.chat_output import AudioDelta, ChatFrames, Completion, SpokenAnswer
from antiphon_gateway.openai.spoken import LIFETIME_SECONDS, spoken_id
from antiphon_gateway.routes.common import StreamReport, frame_of, now, write_failure
from antiphon_gateway.sse import DONE, StreamWriter

_FORMATS = {
    "wav": AudioFormat("wav", 24_000),
    "mp3": AudioFormat("mp3", 24_000),
    "flac": AudioFormat("flac", 24_000),
    "opus": AudioFormat("opus", 48_000),
    "pcm16": AudioFormat("pcm16", 24_000),
}
_PIECE_BYTES = 6
"""Audio leaves in multiples of this: whole samples, and base64 without padding inside."""


@dataclass(frozen=True, slots=True)
class SpokenOptions:
    """The voice and format that an answer is spoken in."""

    voice: str
    audio_format: AudioFormat


def spoken_options(request: ChatRequest, backends: Backends) -> SpokenOptions | None:
    """How the answer is to be spoken; None for text only.

    Raises:
        InvalidArgument: missing or unserved settings.
    """
    if "audio" not in (request.modalities or ()):
        return None
    if request.audio is None:
        raise InvalidArgument(
            'audio is required with modalities ["text", "audio"]',
            reason="MISSING_FIELD",
            field="audio",
        )
    if request.stream and (request.n or 1) > 1:
        raise InvalidArgument("a spoken answer that is streamed has one choice", field="n")
    if request.stream and request.audio.format != "pcm16":
        raise InvalidArgument(
            "audio.format must be pcm16 with stream: true",
            field="audio.format",
            allowed=["pcm16"],
        )
    if request.audio.format not in _FORMATS:
        raise InvalidArgument(
            f"audio.format {request.audio.format} is not served; allowed: {', '.join(_FORMATS)}",
            field="audio.format",
            allowed=list(_FORMATS),
        )
    voice = request.audio.voice
    return SpokenOptions(
        voice=backends.vocoder.resolve_voice(voice if isinstance(voice, str) else voice.id),
        audio_format=_FORMATS[request.audio.format],
    )


async def speak_answers(completion: Completion, options: SpokenOptions, backends: Backends) -> None:
    """Moves the text of every answer into its audio.

    Raises:
        AntiphonError: the voice failed.
    """
    for choice in completion.choices:
        text = choice.message.content
        if not text or not text.strip():
            continue
        config = SpeechConfig(
            voice=options.voice,
            output_format=options.audio_format,
            exact_container=options.audio_format.encoding == "wav",
        )
        async with backends.vocoder.stream(config) as stream:
            await stream.send_text(text)
            await stream.end_input()
            audio = b"".join(
                [event.data async for event in stream if isinstance(event, AudioChunk)]
            )
        expires_at = now() + LIFETIME_SECONDS
        choice.message.audio = SpokenAnswer(
            id=spoken_id(text, expires_at),
            data=b64encode(audio).decode(),
            transcript=text,
            expires_at=expires_at,
        )
        choice.message.content = None


@dataclass(frozen=True, slots=True)
class SpokenSink:
    """Where a streamed answer goes."""

    writer: StreamWriter
    frames: ChatFrames
    report: StreamReport


@asynccontextmanager
async def open_voice(options: SpokenOptions, backends: Backends) -> AsyncIterator[SpeechStream]:
    """A voice that has its slot, so that a refusal still becomes a status; closed with the block.

    Raises:
        AntiphonError: the voice cannot speak now.
    """
    config = SpeechConfig(voice=options.voice, output_format=options.audio_format)
    async with backends.vocoder.stream(config) as voice:
        async for event in voice:
            if isinstance(event, SpeechReady):
                break
        yield voice


async def stream_spoken(
    sink: SpokenSink, events: AsyncIterator[GenerateEvent], voice: SpeechStream
) -> None:
    """Writes transcript and audio as they come, ``[DONE]`` last; a failure is an error event.

    The voice is fed while the model writes. What is not said, such as reasoning and tool calls,
    travels as in any stream. Id and expiry come once the transcript is complete.
    """
    writer, frames = sink.writer, sink.frames
    try:
        async with asyncio.TaskGroup() as tasks:
            playing = tasks.create_task(_play(voice, sink))
            transcript, ending = await _read(events, voice, sink)
            if not transcript.strip():
                playing.cancel()
        if transcript.strip():
            expires_at = now() + LIFETIME_SECONDS
            answer = AudioDelta(id=spoken_id(transcript, expires_at), expires_at=expires_at)
            await writer.write(frames.audio(answer))
        for event in ending:
            await writer.write(frame_of(event, frames, sink.report))
        await writer.write(DONE)
    except* AntiphonError as group:
        await write_failure(writer, _first(group))


async def _read(
    events: AsyncIterator[GenerateEvent], voice: SpeechStream, sink: SpokenSink
) -> tuple[str, list[GenerateEvent]]:
    """Feeds the voice; returns the transcript and the events that end the stream."""
    said = []
    ending: list[GenerateEvent] = []
    async for event in events:
        if isinstance(event, Finished | Completed):
            if isinstance(event, Finished) and event.error is not None:
                raise event.error
            ending.append(event)
        elif isinstance(event, Delta):
            if event.text:
                said.append(event.text)
                piece = AudioDelta(transcript=event.text)
                await sink.writer.write(sink.frames.audio(piece, token_count=event.token_count))
                await voice.send_text(event.text)
                event.text, event.token_count = "", 0
            await sink.writer.write(sink.frames.delta(event))
    await voice.end_input()
    return "".join(said), ending


async def _play(voice: SpeechStream, sink: SpokenSink) -> None:
    rest = b""
    async for event in voice:
        if isinstance(event, AudioChunk):
            rest += event.data
            whole = len(rest) - len(rest) % _PIECE_BYTES
            await _write_audio(rest[:whole], sink)
            rest = rest[whole:]
    await _write_audio(rest, sink)


async def _write_audio(data: bytes, sink: SpokenSink) -> None:
    if data:
        piece = AudioDelta(data=b64encode(data).decode())
        await sink.writer.write(sink.frames.audio(piece))


def _first(group: BaseExceptionGroup[AntiphonError]) -> AntiphonError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, AntiphonError)
    return error
