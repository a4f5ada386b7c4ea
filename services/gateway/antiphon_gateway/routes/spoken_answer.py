"""Chat answers as audio: a finished answer in one piece, or text and voice as they come.

A model that writes speech codes speaks itself: its codes go to their codec, its text is the
transcript. The text of any other model is spoken by a voice.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from antiphon_core.errors import AntiphonError, InvalidArgument

from antiphon_gateway.clients import Backends, SpeechStream
from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.domain.generation import Completed, Delta, Finished, GenerateEvent
from antiphon_gateway.domain.speech import (
    AudioChunk,
    AudioFormat,
    CodeFormat,
    SpeechConfig,
    SpeechReady,
)
from antiphon_gateway.openai.chat import ChatRequest
from antiphon_gateway.openai.chat_output import AudioDelta, ChatFrames, Completion, SpokenAnswer
from antiphon_gateway.openai.spoken import LIFETIME_SECONDS, spoken_id
from antiphon_gateway.routes.common import Collected, StreamReport, frame_of, now, write_failure
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
    """Empty for a model that speaks itself."""
    audio_format: AudioFormat
    code_format: CodeFormat | None = None
    """Of the codes of a model that speaks itself."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was asked for and has no effect."""
        if self.code_format is None:
            return ()
        return ("audio.voice has no effect: the model speaks with a voice of its own",)

    def config(self, *, whole: bool = False) -> SpeechConfig:
        """The speech stream of one answer.

        Args:
            whole: nobody listens before its end, so a container can have exact sizes.
        """
        return SpeechConfig(
            voice=self.voice,
            output_format=self.audio_format,
            exact_container=whole and self.audio_format.encoding == "wav",
            code_format=self.code_format,
        )


def spoken_options(
    request: ChatRequest, model: ModelInfo, backends: Backends
) -> SpokenOptions | None:
    """How the answer is to be spoken; None for text only.

    Raises:
        InvalidArgument: missing or unserved settings.
        Unavailable: no vocoder service is ready.
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
    if model.code_format is not None:
        return SpokenOptions("", _FORMATS[request.audio.format], model.code_format)
    voice = request.audio.voice
    return SpokenOptions(
        voice=backends.vocoder.resolve_voice(voice if isinstance(voice, str) else voice.id),
        audio_format=_FORMATS[request.audio.format],
    )


async def speak_answers(
    completion: Completion, collected: Collected, options: SpokenOptions, backends: Backends
) -> None:
    """Moves the text of every answer into its audio; an answer that says nothing stays as it is.

    Raises:
        AntiphonError: the voice or the codec failed.
    """
    for choice, generated in zip(completion.choices, collected.choices, strict=True):
        text = choice.message.content or ""
        coded = options.code_format is not None
        if not (generated.codes if coded else text.strip()):
            continue
        async with backends.vocoder.stream(options.config(whole=True)) as stream:
            audio = await _spoken(stream, generated.codes if coded else text)
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
    async with backends.vocoder.stream(options.config()) as voice:
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
            said = await _read(events, voice, sink)
            if not said.is_audible:
                playing.cancel()
        if said.is_audible:
            expires_at = now() + LIFETIME_SECONDS
            answer = AudioDelta(id=spoken_id(said.transcript, expires_at), expires_at=expires_at)
            await writer.write(frames.audio(answer))
        for event in said.ending:
            await writer.write(frame_of(event, frames, sink.report))
        await writer.write(DONE)
    except* AntiphonError as group:
        await write_failure(writer, _first(group))


@dataclass(frozen=True, slots=True)
class _Said:
    """What a streamed answer said, and the events that end its stream."""

    transcript: str
    is_audible: bool
    ending: list[GenerateEvent]


async def _read(
    events: AsyncIterator[GenerateEvent], voice: SpeechStream, sink: SpokenSink
) -> _Said:
    """Feeds the voice with text, or the codec with codes; to wait for it holds the model back."""
    texts: list[str] = []
    ending: list[GenerateEvent] = []
    coded = voice.speaks_codes
    has_codes = False
    async for event in events:
        if isinstance(event, Finished | Completed):
            if isinstance(event, Finished) and event.error is not None:
                raise event.error
            ending.append(event)
        elif isinstance(event, Delta):
            if event.text:
                texts.append(event.text)
                piece = AudioDelta(transcript=event.text)
                await sink.writer.write(sink.frames.audio(piece, token_count=event.token_count))
                if not coded:
                    await voice.send_text(event.text)
                event.text, event.token_count = "", 0
            if event.codes:
                has_codes = True
                await voice.send_codes(event.codes)
                event.codes = ()
            await sink.writer.write(sink.frames.delta(event))
    await voice.end_input()
    transcript = "".join(texts)
    return _Said(transcript, has_codes if coded else bool(transcript.strip()), ending)


async def _spoken(stream: SpeechStream, said: str | Sequence[int]) -> bytes:
    """The audio of a whole answer; what is far ahead of its audio waits to be sent.

    Raises:
        AntiphonError: the voice or the codec failed.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_say(stream, said))
            return b"".join([event.data async for event in stream if isinstance(event, AudioChunk)])
    except ExceptionGroup as group:
        raise _first(group) from None


async def _say(stream: SpeechStream, said: str | Sequence[int]) -> None:
    """Sends a whole answer, text or codes."""
    if isinstance(said, str):
        await stream.send_text(said)
    else:
        await stream.send_codes(said)
    await stream.end_input()


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


def _first(group: BaseExceptionGroup) -> AntiphonError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AntiphonError):
        return error
    raise error
