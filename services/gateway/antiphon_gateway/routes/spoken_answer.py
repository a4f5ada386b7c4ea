"""Chat answers as audio: the text of a finished answer, spoken by a voice."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass

from antiphon_core.errors import InvalidArgument

from antiphon_gateway.clients import Backends
from antiphon_gateway.domain.speech import AudioChunk, AudioFormat, SpeechConfig
from antiphon_gateway.openai.chat import ChatRequest
from antiphon_gateway.openai.chat_output import Completion, SpokenAnswer
from antiphon_gateway.routes.common import new_id, now

_FORMATS = {
    "wav": AudioFormat("wav", 24_000),
    "mp3": AudioFormat("mp3", 24_000),
    "flac": AudioFormat("flac", 24_000),
    "opus": AudioFormat("opus", 48_000),
    "pcm16": AudioFormat("pcm16", 24_000),
}
_LIFETIME_SECONDS = 3600


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
    if request.stream:
        raise InvalidArgument(
            "spoken answers are not streamed here; leave stream out or use /v1/realtime",
            reason="UNSUPPORTED_MODALITY",
            field="modalities",
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
        choice.message.audio = SpokenAnswer(
            id=new_id("audio"),
            data=b64encode(audio).decode(),
            transcript=text,
            expires_at=now() + _LIFETIME_SECONDS,
        )
        choice.message.content = None
