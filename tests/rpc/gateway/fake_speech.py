"""Voice and recogniser without models, whose answers a test scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from antiphon.vocoder.v1 import recognition_service_pb2 as rec
from antiphon.vocoder.v1 import recognition_service_pb2_grpc, vocoder_service_pb2_grpc
from antiphon.vocoder.v1 import vocoder_service_pb2 as voc
from antiphon_core.errors import FailedPrecondition, InvalidArgument, NotFound
from antiphon_core.rpc.context import ALL_TENANTS, current
from fake_calls import Calls


@dataclass
class SpeechScript:
    """How the next speech streams go."""

    chunks: tuple[bytes, ...] = (b"\x01\x00" * 240, b"\x02\x00" * 240, b"\x03\x00" * 240)
    delay: float = 0.0
    fail_before: Exception | None = None
    fail_after_chunks: int | None = None
    failure: Exception = field(default_factory=lambda: RuntimeError("scripted"))


class FakeVocoder(vocoder_service_pb2_grpc.VocoderServiceServicer):
    """Speaks the scripted chunks once the input has ended."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.script = SpeechScript()
        self.texts: list[str] = []
        self.codes: list[list[int]] = []
        """Of streams that had any."""
        self.made: list[voc.Voice] = []
        self.samples: list[tuple[voc.CreateVoiceConfig, bytes]] = []
        self.keeps_no_voices = False
        self.mime_type = "audio/x-test-{encoding}"

    async def StreamSpeech(self, requests, context) -> AsyncIterator[voc.StreamSpeechResponse]:
        script = self.script
        config = None
        text = ""
        codes: list[int] = []
        try:
            async for request in requests:
                kind = request.WhichOneof("message")
                if kind == "config":
                    config = request.config
                    self.calls.begin(config)
                    if script.fail_before is not None:
                        raise script.fail_before
                    yield self._ready(config)
                elif kind == "text":
                    text += request.text
                elif kind == "codes":
                    codes += request.codes.codes
            self.texts.append(text)
            self.codes += [codes] if codes else []
            sample = 0
            for index, chunk in enumerate(script.chunks):
                if script.fail_after_chunks == index:
                    raise script.failure
                if script.delay:
                    await asyncio.sleep(script.delay)
                audio = voc.AudioChunk(
                    data=chunk, first_sample=sample, sample_count=len(chunk) // 2
                )
                sample += len(chunk) // 2
                yield voc.StreamSpeechResponse(audio=audio)
            finished = voc.SpeechFinished(
                reason=voc.SPEECH_FINISH_REASON_COMPLETE,
                sample_count=sample,
                input_units=len(text),
            )
            finished.audio_duration.FromMilliseconds(sample * 1000 // 24_000)
            yield voc.StreamSpeechResponse(finished=finished)
        except (asyncio.CancelledError, GeneratorExit):
            self.calls.cancelled_at.append(time.monotonic())
            raise
        finally:
            self.calls.running -= config is not None

    def _ready(self, config: voc.SpeechConfig) -> voc.StreamSpeechResponse:
        return voc.StreamSpeechResponse(
            ready=voc.SpeechReady(
                voice=config.voice or "joe",
                model="piper",
                output_format=config.output_format,
                mime_type=self.mime_type.format(encoding=config.output_format.encoding),
            )
        )

    async def CreateVoice(self, requests, context) -> voc.CreateVoiceResponse:
        config = None
        data = b""
        async for request in requests:
            if request.WhichOneof("message") == "config":
                config = request.config
            data += request.audio
        assert config is not None
        if self.keeps_no_voices:
            raise FailedPrecondition("no store is configured", field="voice_store_dir")
        if not config.HasField("consent"):
            raise FailedPrecondition(
                "no consent", reason="CONSENT_REQUIRED", field="config.consent"
            )
        if data == b"noise":
            raise InvalidArgument("too noisy", reason="INVALID_AUDIO", field="audio")
        self.samples.append((config, data))
        voice = voc.Voice(
            id=f"voice_{len(self.samples)}",
            display_name=config.display_name,
            kind=voc.VOICE_KIND_CLONED,
            models=["codec"],
            tenant=current().tenant,
        )
        voice.created_at.FromSeconds(1_700_000_003)
        self.made.append(voice)
        return voc.CreateVoiceResponse(voice=voice)

    async def DeleteVoice(self, request, context) -> voc.DeleteVoiceResponse:
        everybody = (ALL_TENANTS, "1") in set(context.invocation_metadata())
        kept = [
            voice
            for voice in self.made
            if voice.id != request.id or not (everybody or voice.tenant == current().tenant)
        ]
        if len(kept) == len(self.made):
            raise NotFound("no voice", reason="VOICE_NOT_FOUND", field="id")
        self.made = kept
        return voc.DeleteVoiceResponse()

    async def ListVoices(self, request, context) -> voc.ListVoicesResponse:
        everybody = (ALL_TENANTS, "1") in set(context.invocation_metadata())
        made = [v for v in self.made if everybody or v.tenant == current().tenant]
        return voc.ListVoicesResponse(
            voices=[
                voc.Voice(
                    id="joe",
                    display_name="Joe",
                    kind=voc.VOICE_KIND_PRESET,
                    models=["piper"],
                    language="en-US",
                    sample_rate_hz=22_050,
                    is_default=True,
                ),
                voc.Voice(id="ann", models=["piper"], kind=voc.VOICE_KIND_PRESET),
                *made,
            ]
        )


@dataclass
class RecognitionScript:
    """How the next recognitions go."""

    segments: tuple[tuple[str, int, int], ...] = ((" Hello there.", 0, 1250), (" Bye.", 1250, 2500))
    speakers: tuple[str, ...] = ("A", "B")
    """Of the segments, where no known ones are given: these label the first segments."""
    fail_before: Exception | None = None
    fail_after_segments: int | None = None
    failure: Exception = field(default_factory=lambda: RuntimeError("scripted"))
    delay: float = 0.0


class FakeRecognition(recognition_service_pb2_grpc.RecognitionServiceServicer):
    """Hears the scripted segments in every file."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.script = RecognitionScript()
        self.files: list[bytes] = []
        self.translates = True
        self.diarizes = True

    async def Recognize(self, requests, context) -> AsyncIterator[rec.RecognizeResponse]:
        script = self.script
        data = b""
        config = None
        try:
            async for request in requests:
                if request.WhichOneof("message") == "config":
                    config = request.config
                    self.calls.begin(config)
                else:
                    data += request.audio
            self.files.append(data)
            if script.fail_before is not None:
                raise script.fail_before
            for index, (text, start, end) in enumerate(script.segments):
                if script.fail_after_segments == index:
                    raise script.failure
                if script.delay:
                    await asyncio.sleep(script.delay)
                segment = rec.TranscriptSegment(
                    text=text, start_ms=start, end_ms=end, token_ids=[1, 2], average_logprob=-0.25
                )
                if config.token_logprobs:
                    for piece in text.split():
                        segment.tokens.add(text=f" {piece}".encode(), logprob=-0.5)
                if config.HasField("diarization"):
                    known = [speaker.name for speaker in config.diarization.known_speakers]
                    segment.speaker = (*known, *script.speakers)[index]
                if config.words:
                    segment.words.append(rec.Word(text=text.split()[0], start_ms=start, end_ms=end))
                yield rec.RecognizeResponse(segment=segment)
            finished = rec.RecognizeFinished(
                text="".join(text for text, _, _ in script.segments).strip(), language="en"
            )
            finished.audio_duration.FromMilliseconds(2500)
            yield rec.RecognizeResponse(finished=finished)
        except (asyncio.CancelledError, GeneratorExit):
            self.calls.cancelled_at.append(time.monotonic())
            raise
        finally:
            self.calls.running -= config is not None

    async def ListRecognizers(self, request, context) -> rec.ListRecognizersResponse:
        return rec.ListRecognizersResponse(
            recognizers=[
                rec.Recognizer(
                    id="whisper-tiny",
                    languages=["en"],
                    translates=self.translates,
                    diarizes=self.diarizes,
                )
            ]
        )
