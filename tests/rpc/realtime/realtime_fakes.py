"""Scripted voice backends: a recogniser that hears loud bytes, a talker, and a voice."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from antiphon.common.v1 import audio_pb2
from antiphon.llm.v1 import generate_pb2 as gen
from antiphon.llm.v1 import llm_service_pb2 as llm
from antiphon.llm.v1 import llm_service_pb2_grpc
from antiphon.vocoder.v1 import (
    recognition_service_pb2 as rec,
)
from antiphon.vocoder.v1 import (
    recognition_service_pb2_grpc,
    vocoder_service_pb2_grpc,
)
from antiphon.vocoder.v1 import vocoder_service_pb2 as voc
from antiphon_core.errors import Unavailable
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.node import NodeAdminServicer
from antiphon_core.node_types import NodeMeasures, ServerInfo
from antiphon_core.rpc.server import RpcServer
from many_streams import ManyGenerations, ManyRecognitions

SAMPLES_A_CHARACTER = 1200
"""The voice speaks a character in 50 ms at 24 kHz."""
LOUD_ENOUGH = 600
LOUD = b"\x00\x40"
"""One sample that the recogniser takes for speech."""


@dataclass
class Script:
    """How the backends behave."""

    words: tuple[str, ...] = ("Hello", " there,", " friend.")
    word_delay: float = 0.0
    hold: asyncio.Event | None = None
    """Waited for before each word, where there is one."""
    finish: str = "FINISH_REASON_STOP"
    llm_failure: Exception | None = None
    prompt_tokens: int = 11
    tool_pieces: tuple[gen.ToolCallDelta, ...] = ()
    voice_failure: Exception | None = None
    audio_bytes_a_piece: int | None = None
    """Length of each piece's audio; None speaks at the natural rate."""
    transcript: str = "what time is it"
    transcript_delay: float = 0.0
    recognizer_failure: Exception | None = None


@dataclass
class Running:
    """Calls that are being served at this moment, and all that were seen."""

    llm: int = 0
    voice: int = 0
    recognizer: int = 0
    voices: int = 0
    """Voice calls so far."""
    shared: int = 0
    """Shared recogniser calls so far."""
    break_shared: bool = False
    """Whether the next message of a shared recogniser call is its end."""
    prompts: list[gen.GenerateRequest] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    configs: list[rec.RecognitionConfig] = field(default_factory=list)
    audio: int = 0
    flushed_at: list[str] = field(default_factory=list)

    @property
    def none(self) -> bool:
        return not (self.llm or self.voice or self.recognizer)


class ScriptedLlm(ManyGenerations, llm_service_pb2_grpc.LlmServiceServicer):
    """Says the script's words to everybody."""

    def __init__(self, script: Script, running: Running) -> None:
        self.script = script
        self.running = running

    async def Generate(self, request, context) -> AsyncIterator[gen.GenerateResponse]:
        self.running.llm += 1
        self.running.prompts.append(request)
        try:
            yield gen.GenerateResponse(
                accepted=gen.GenerateAccepted(prompt_tokens=self.script.prompt_tokens)
            )
            count = 0
            for piece in self.script.tool_pieces:
                delta = gen.GenerateDelta(tool_calls=[piece], token_count=1)
                yield gen.GenerateResponse(delta=delta)
            for word in () if self.script.tool_pieces else self.script.words:
                if self.script.hold is not None:
                    await self.script.hold.wait()
                if self.script.word_delay:
                    await asyncio.sleep(self.script.word_delay)
                count += 1
                yield gen.GenerateResponse(delta=gen.GenerateDelta(text=word, token_count=1))
            if self.script.llm_failure is not None:
                raise self.script.llm_failure
            yield gen.GenerateResponse(finished=gen.ChoiceFinished(reason=self.script.finish))
            usage = gen.Usage(prompt_tokens=11, cached_tokens=2, output_tokens=count)
            yield gen.GenerateResponse(completed=gen.GenerateCompleted(usage=usage))
        finally:
            self.running.llm -= 1

    async def ListModels(self, request, context) -> llm.ListModelsResponse:
        model = llm.Model(
            id="small",
            context_limit=2048,
            chat=True,
            input_modalities=[gen.MODALITY_TEXT],
            output_modalities=[gen.MODALITY_TEXT],
        )
        return llm.ListModelsResponse(models=[model])


class ScriptedVoice(vocoder_service_pb2_grpc.VocoderServiceServicer):
    """Speaks each piece of text at once, as a triangle wave."""

    def __init__(self, script: Script, running: Running) -> None:
        self.script = script
        self.running = running

    async def StreamSpeech(self, requests, context) -> AsyncIterator[voc.StreamSpeechResponse]:
        self.running.voice += 1
        self.running.voices += 1
        characters = sample = 0
        text = ""
        form = audio_pb2.AudioFormat()
        try:
            async for request in requests:
                kind = request.WhichOneof("message")
                if kind == "config":
                    form = request.config.output_format
                    ready = voc.SpeechReady(voice="joe", output_format=form)
                    yield voc.StreamSpeechResponse(ready=ready)
                    continue
                if kind == "flush":
                    self.running.flushed_at.append(text)
                    continue
                text += request.text
                characters += len(request.text)
                if self.script.voice_failure is not None:
                    raise self.script.voice_failure
                for chunk in self._speak(request.text, form):
                    count = len(chunk) // self._width(form)
                    audio = voc.AudioChunk(data=chunk, first_sample=sample, sample_count=count)
                    sample += count
                    yield voc.StreamSpeechResponse(audio=audio)
                mark = voc.SpeechMark(input_offset=characters, sample=sample)
                yield voc.StreamSpeechResponse(mark=mark)
            self.running.texts.append(text)
            finished = voc.SpeechFinished(
                reason=voc.SPEECH_FINISH_REASON_COMPLETE, sample_count=sample
            )
            yield voc.StreamSpeechResponse(finished=finished)
        finally:
            self.running.voice -= 1

    def _width(self, form: audio_pb2.AudioFormat) -> int:
        return 2 if form.encoding == audio_pb2.AUDIO_ENCODING_PCM16 else 1

    def _speak(self, text: str, form: audio_pb2.AudioFormat) -> list[bytes]:
        width = self._width(form)
        total = self.script.audio_bytes_a_piece
        if total is None:
            total = len(text) * SAMPLES_A_CHARACTER * width * form.sample_rate_hz // 24_000
        wave = b"".join(
            (abs(i % 96 - 48) * 300 - 7200).to_bytes(2, "little", signed=True) for i in range(96)
        )
        data = (wave * (total // len(wave) + 1))[: total - total % width]
        return [data[start : start + 9600] for start in range(0, len(data), 9600)]

    async def ListVoices(self, request, context) -> voc.ListVoicesResponse:
        voice = voc.Voice(id="joe", display_name="Joe", is_default=True, language="en-US")
        return voc.ListVoicesResponse(voices=[voice])


class ScriptedRecognizer(ManyRecognitions, recognition_service_pb2_grpc.RecognitionServiceServicer):
    """Loud bytes are speech; the script's silence ends a turn; every turn has one text."""

    def __init__(self, script: Script, running: Running) -> None:
        self.script = script
        self.running = running

    async def StreamingRecognize(
        self, requests, context
    ) -> AsyncIterator[rec.StreamingRecognizeResponse]:
        self.running.recognizer += 1
        ear = Ear()
        try:
            async for request in requests:
                kind = request.WhichOneof("message")
                if kind == "config":
                    self.running.configs.append(request.config)
                    ear.configure(request.config)
                    ready = rec.RecognitionReady(model="tiny", detector="loudness")
                    yield rec.StreamingRecognizeResponse(ready=ready)
                elif kind == "turn_detection":
                    ear.tune(request.turn_detection)
                elif kind == "audio":
                    self.running.audio += len(request.audio)
                    if self.script.recognizer_failure is not None:
                        raise self.script.recognizer_failure
                    for event in ear.hear(request.audio):
                        yield event
                        if event.HasField("speech_started") and ear.partials:
                            yield self._partial(event.speech_started.utterance)
                        if event.HasField("speech_stopped"):
                            yield await self._final(ear, event.speech_stopped.utterance, "")
                elif kind == "flush":
                    yield await self._final(ear, ear.next_utterance(), request.flush.tag)
            yield rec.StreamingRecognizeResponse(finished=rec.RecognitionFinished())
        finally:
            self.running.recognizer -= 1

    async def StreamingRecognizeMany(
        self, requests, context
    ) -> AsyncIterator[rec.StreamingRecognizeManyResponse]:
        self.running.shared += 1
        async for message in super().StreamingRecognizeMany(requests, context):
            if self.running.break_shared:
                raise Unavailable("the recogniser is gone", reason="WORKER_DIED")
            yield message

    def _partial(self, utterance: int) -> rec.StreamingRecognizeResponse:
        stable = self.script.transcript.split()[0]
        partial = rec.PartialTranscript(
            utterance=utterance, text=stable + " maybe", stable_characters=len(stable)
        )
        return rec.StreamingRecognizeResponse(partial=partial)

    async def _final(self, ear: Ear, utterance: int, tag: str) -> rec.StreamingRecognizeResponse:
        if self.script.transcript_delay:
            await asyncio.sleep(self.script.transcript_delay)
        final = rec.FinalTranscript(utterance=utterance, text=self.script.transcript, tag=tag)
        if ear.diarizes:
            final.segments.add(text=f" {final.text}", start_ms=10, end_ms=490, speaker="A")
        return rec.StreamingRecognizeResponse(final=final)

    async def Recognize(self, requests, context) -> AsyncIterator[rec.RecognizeResponse]:
        async for _ in requests:
            pass
        segment = rec.TranscriptSegment(text=self.script.transcript, start_ms=0, end_ms=900)
        yield rec.RecognizeResponse(segment=segment)
        finished = rec.RecognizeFinished(text=self.script.transcript, language="en")
        finished.audio_duration.FromMilliseconds(900)
        yield rec.RecognizeResponse(finished=finished)

    async def ListRecognizers(self, request, context) -> rec.ListRecognizersResponse:
        return rec.ListRecognizersResponse(recognizers=[rec.Recognizer(id="tiny", diarizes=True)])


class Ear:
    """Turn detection of one stream, in steps of 10 ms."""

    def __init__(self) -> None:
        self._rest = b""
        self.partials = False
        self.diarizes = False
        self._steps = 0
        self._quiet = 0
        self._speaking = False
        self._utterance = -1
        self._manual = False
        self._silence = 50
        self._step_bytes = 480

    def configure(self, config: rec.RecognitionConfig) -> None:
        width = 2 if config.format.encoding == audio_pb2.AUDIO_ENCODING_PCM16 else 1
        self._step_bytes = config.format.sample_rate_hz // 100 * width
        self.partials = config.partials
        self.diarizes = config.HasField("diarization")
        self.tune(config.turn_detection)

    def tune(self, detection: rec.TurnDetection) -> None:
        self._manual = detection.mode == rec.TurnDetection.MODE_NONE
        if detection.HasField("silence"):
            self._silence = detection.silence.ToMilliseconds() // 10

    def next_utterance(self) -> int:
        self._utterance += 1
        return self._utterance

    def _is_loud(self, step: bytes) -> bool:
        if self._step_bytes == 80:
            return max(step) > 2
        # Digital silence is most of what a bench sends.
        return bool(step.strip(b"\0")) and max(map(abs, array("h", step))) > LOUD_ENOUGH

    def hear(self, audio: bytes) -> list[rec.StreamingRecognizeResponse]:
        events = []
        self._rest += audio
        while len(self._rest) >= self._step_bytes:
            step, self._rest = self._rest[: self._step_bytes], self._rest[self._step_bytes :]
            self._steps += 1
            loud = self._is_loud(step)
            self._quiet = 0 if loud else self._quiet + 1
            if self._manual:
                continue
            if loud and not self._speaking:
                self._speaking = True
                at = (self._steps - 1) * 10
                started = rec.SpeechStarted(utterance=self.next_utterance(), at_ms=at)
                events.append(rec.StreamingRecognizeResponse(speech_started=started))
            elif self._speaking and self._quiet >= self._silence:
                self._speaking = False
                at = (self._steps - self._quiet) * 10
                stopped = rec.SpeechStopped(utterance=self._utterance, at_ms=at)
                events.append(rec.StreamingRecognizeResponse(speech_stopped=stopped))
        return events


class ScriptedBackends:
    """One server that is llm, vocoder and recogniser at once.

    Args:
        recognizer: what hears.
    """

    def __init__(self, recognizer: type[ScriptedRecognizer] = ScriptedRecognizer) -> None:
        self._recognizer = recognizer
        self.script = Script()
        self.running = Running()
        self.measures = NodeMeasures()
        """What the server says about its slots."""
        self._lifecycle = Lifecycle(boot_id="fake")
        self._server: RpcServer | None = None

    async def start(self) -> str:
        """Serves; returns the target."""
        node = NodeAdminServicer(
            self._lifecycle, lambda: ServerInfo("fake", "0"), lambda: self.measures
        )
        server = RpcServer(service="fake", bind="127.0.0.1:0", lifecycle=self._lifecycle, node=node)
        server.add(
            llm_service_pb2_grpc.add_LlmServiceServicer_to_server,
            ScriptedLlm(self.script, self.running),
            "antiphon.llm.v1.LlmService",
        )
        server.add(
            vocoder_service_pb2_grpc.add_VocoderServiceServicer_to_server,
            ScriptedVoice(self.script, self.running),
            "antiphon.vocoder.v1.VocoderService",
        )
        server.add(
            recognition_service_pb2_grpc.add_RecognitionServiceServicer_to_server,
            self._recognizer(self.script, self.running),
            "antiphon.vocoder.v1.RecognitionService",
        )
        self._server = server
        self._lifecycle.booting("loading")
        port = await server.start()
        self._lifecycle.ready()
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        """Ends serving; running calls are cut."""
        if self._server is not None:
            await self._server.stop(0.0)
