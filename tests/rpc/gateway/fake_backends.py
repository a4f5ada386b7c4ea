"""Backends without models: real gRPC servers whose answers a test scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from antiphon.common.v1 import audio_pb2
from antiphon.llm.v1 import generate_pb2 as gen
from antiphon.llm.v1 import llm_service_pb2 as llm
from antiphon.llm.v1 import llm_service_pb2_grpc
from antiphon.vocoder.v1 import recognition_service_pb2 as rec
from antiphon.vocoder.v1 import (
    recognition_service_pb2_grpc,
    vocoder_service_pb2_grpc,
)
from antiphon.vocoder.v1 import vocoder_service_pb2 as voc
from antiphon_core.errors import (
    AntiphonError,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    Unavailable,
    Unimplemented,
)
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.node import NodeAdminServicer
from antiphon_core.node_types import ServerInfo
from antiphon_core.rpc.context import current
from antiphon_core.rpc.errors import to_status
from antiphon_core.rpc.server import RpcServer

WORDS = ("Hello", " there", ",", " friend", " \u00e9\u4e16\U0001f600", '"\n')


@dataclass
class Calls:
    """What a servicer saw."""

    requests: list = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    traceparents: list[str] = field(default_factory=list)
    running: int = 0
    cancelled_at: list[float] = field(default_factory=list)
    """Calls that were cancelled, in a wait or (GeneratorExit) at a yield."""

    def begin(self, request: object, request_id: str = "", traceparent: str = "") -> None:
        """Counts a request; its ids are the call's where it brings none of its own."""
        self.requests.append(request)
        self.request_ids.append(request_id or current().request_id)
        self.traceparents.append(traceparent or current().traceparent)
        self.running += 1


@dataclass
class LlmScript:
    """How the next generations go."""

    words: tuple[str, ...] = WORDS
    delay: float = 0.0
    """Seconds before each word."""
    accept_delay: float = 0.0
    fail_before: Exception | None = None
    fail_after_words: int | None = None
    failure: Exception = field(default_factory=lambda: RuntimeError("scripted"))
    finish: str = "FINISH_REASON_STOP"
    extra_deltas: tuple[gen.GenerateDelta, ...] = ()
    end_without_terminal: bool = False
    notes: tuple[str, ...] = ()
    usage: gen.Usage = field(default_factory=gen.Usage)
    """Counts beside the common ones."""


class FakeLlm(llm_service_pb2_grpc.LlmServiceServicer):
    """Says the scripted words to everybody."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.script = LlmScript()
        self.starts: list[gen.StartGenerate] = []
        self.streams = 0
        """GenerateMany calls that were opened."""
        self.break_streams = False
        """Whether the next message of a GenerateMany call is its end."""
        self.ignores_timeouts = False
        self.stream_metadata: dict[str, str] = {}
        """Of the last GenerateMany call."""
        self._outboxes: list[asyncio.Queue[gen.GenerateManyResponse | None]] = []
        self.models = [
            llm.Model(
                id="org/small-model",
                context_limit=2048,
                input_modalities=[gen.MODALITY_TEXT],
                output_modalities=[gen.MODALITY_TEXT],
                chat=True,
                fingerprint="fp_test",
                aliases=["small"],
                created_at_seconds=1_700_000_000,
            ),
            llm.Model(
                id="base-model",
                context_limit=512,
                input_modalities=[gen.MODALITY_TEXT, gen.MODALITY_IMAGE],
                output_modalities=[gen.MODALITY_TEXT],
                created_at_seconds=1_700_000_001,
            ),
        ]

    async def GenerateMany(self, requests, context) -> AsyncIterator[gen.GenerateManyResponse]:
        self.streams += 1
        self.stream_metadata = dict(context.invocation_metadata())
        outbox: asyncio.Queue[gen.GenerateManyResponse | None] = asyncio.Queue()
        self._outboxes.append(outbox)
        live: dict[str, asyncio.Task[None]] = {}

        async def read() -> None:
            async for request in requests:
                if request.WhichOneof("action") == "cancel":
                    task = live.pop(request.cancel.stream_id, None)
                    if task is not None:
                        task.cancel()
                else:
                    start = request.start
                    self.starts.append(start)
                    live[start.stream_id] = asyncio.create_task(self._start(start, outbox))
            await outbox.put(None)

        reader = asyncio.create_task(read())
        try:
            while (message := await outbox.get()) is not None:
                if self.break_streams:
                    raise Unavailable("the engine died", reason="WORKER_DIED")
                yield message
        finally:
            self._outboxes.remove(outbox)
            for task in (reader, *live.values()):
                task.cancel()

    def end_streams(self) -> None:
        """Ends every GenerateMany call in order, as a service that drains does."""
        for outbox in self._outboxes:
            outbox.put_nowait(None)

    async def _start(self, start: gen.StartGenerate, outbox: asyncio.Queue) -> None:
        """One request of a stream, as Generate would serve it."""
        self.calls.begin(start.request, start.request_id, start.traceparent)
        timed = start.HasField("timeout") and not self.ignores_timeouts
        timeout = start.timeout.ToMilliseconds() / 1000 if timed else None
        try:
            async with asyncio.timeout(timeout):
                async for response in self._answer(start.request, self.script):
                    await outbox.put(many(start.stream_id, response))
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.calls.cancelled_at.append(time.monotonic())
            raise
        except TimeoutError:
            await outbox.put(failed(start.stream_id, DeadlineExceeded("too late")))
        except AntiphonError as error:
            await outbox.put(failed(start.stream_id, error))
        except Exception:
            await outbox.put(failed(start.stream_id, Internal("the service failed")))
        finally:
            self.calls.running -= 1

    async def Generate(self, request, context) -> AsyncIterator[gen.GenerateResponse]:
        self.calls.begin(request)
        try:
            async for response in self._answer(request, self.script):
                yield response
        except (asyncio.CancelledError, GeneratorExit):
            self.calls.cancelled_at.append(time.monotonic())
            raise
        finally:
            self.calls.running -= 1

    async def _answer(self, request, script: LlmScript) -> AsyncIterator[gen.GenerateResponse]:
        if script.accept_delay:
            await asyncio.sleep(script.accept_delay)
        if script.fail_before is not None:
            raise script.fail_before
        prompt = prompt_tokens(request)
        accepted = gen.GenerateAccepted(
            request_id="r1",
            model=request.model,
            fingerprint="fp_test",
            prompt_tokens=len(prompt),
            notes=script.notes,
        )
        if request.output.HasField("prompt_logprobs"):
            accepted.prompt_logprobs.extend(
                logprob(token, request.output.prompt_logprobs) for token in prompt
            )
        yield gen.GenerateResponse(accepted=accepted)
        choices = range(request.choice_count or 1)
        for index, word in enumerate(script.words):
            if script.fail_after_words == index:
                raise script.failure
            if script.delay:
                await asyncio.sleep(script.delay)
            for choice in choices:
                yield gen.GenerateResponse(delta=self._delta(request, choice, word))
        for delta in script.extra_deltas:
            yield gen.GenerateResponse(delta=delta)
        if script.fail_after_words == len(script.words):
            raise script.failure
        for choice in choices:
            yield gen.GenerateResponse(
                finished=gen.ChoiceFinished(choice=choice, reason=script.finish)
            )
        if script.end_without_terminal:
            return
        usage = gen.Usage(
            prompt_tokens=len(prompt),
            cached_tokens=1,
            output_tokens=len(script.words) * len(choices),
        )
        usage.MergeFrom(script.usage)
        yield gen.GenerateResponse(completed=gen.GenerateCompleted(usage=usage))

    def _delta(self, request, choice: int, word: str) -> gen.GenerateDelta:
        delta = gen.GenerateDelta(choice=choice, text=word, token_count=1)
        if request.output.HasField("logprobs"):
            delta.logprobs.append(logprob(word.encode(), request.output.logprobs))
        return delta

    async def Tokenize(self, request, context) -> llm.TokenizeResponse:
        if request.WhichOneof("input") == "text":
            ids, rendered = list(request.text.encode()), ""
        else:
            rendered = "".join(m.parts[0].text for m in request.chat.messages)
            ids = list(rendered.encode())
        return llm.TokenizeResponse(ids=ids, context_limit=2048, rendered=rendered)

    async def Detokenize(self, request, context) -> llm.DetokenizeResponse:
        if any(token > 255 for token in request.ids):
            raise InvalidArgument("ids[0] is outside the vocabulary", field="ids[0]")
        return llm.DetokenizeResponse(text=bytes(request.ids).decode("utf-8", "replace"))

    async def Embed(self, request, context) -> llm.EmbedResponse:
        if request.model != "base-model":
            raise Unimplemented("this model does not embed")
        vectors = [llm.EmbedVector(values=[0.5, -0.25]) for _ in request.inputs]
        return llm.EmbedResponse(vectors=vectors, prompt_tokens=3, model=request.model)

    async def ListModels(self, request, context) -> llm.ListModelsResponse:
        return llm.ListModelsResponse(models=self.models)


def many(stream_id: str, response: gen.GenerateResponse) -> gen.GenerateManyResponse:
    """A response as a message of a multiplexed stream: plain text in the columns."""
    delta = response.delta
    if response.WhichOneof("event") == "delta" and {f.name for f, _ in delta.ListFields()} <= {
        "choice",
        "text",
        "token_count",
    }:
        return gen.GenerateManyResponse(
            stream_ids=[stream_id],
            choices=[delta.choice],
            texts=[delta.text],
            token_counts=[delta.token_count],
        )
    event = gen.GenerateManyEvent(stream_id=stream_id, response=response)
    return gen.GenerateManyResponse(events=[event])


def failed(stream_id: str, error: AntiphonError) -> gen.GenerateManyResponse:
    """The end of one request of a multiplexed stream."""
    event = gen.GenerateManyEvent(stream_id=stream_id, error=to_status(error))
    return gen.GenerateManyResponse(events=[event])


def prompt_tokens(request) -> list[bytes]:
    """One token a byte of the prompt."""
    kind = request.WhichOneof("input")
    if kind == "text":
        return [bytes([byte]) for byte in request.text.encode()]
    if kind == "tokens":
        return [bytes([token % 256]) for token in request.tokens.ids]
    return [b"x"] * sum(len(m.parts) for m in request.chat.messages)


def logprob(token: bytes, alternatives: int) -> gen.TokenLogprob:
    return gen.TokenLogprob(
        token_id=7,
        token=token,
        logprob=-0.5,
        rank=2,
        alternatives=[
            gen.TokenAlternative(token_id=i, token=b"alt%d" % i, logprob=-1.0 - i)
            for i in range(alternatives)
        ],
    )


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

    async def StreamSpeech(self, requests, context) -> AsyncIterator[voc.StreamSpeechResponse]:
        script = self.script
        config = None
        text = ""
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
            self.texts.append(text)
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
                mime_type=f"audio/x-test-{config.output_format.encoding}",
            )
        )

    async def ListVoices(self, request, context) -> voc.ListVoicesResponse:
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
            ]
        )


@dataclass
class RecognitionScript:
    """How the next recognitions go."""

    segments: tuple[tuple[str, int, int], ...] = ((" Hello there.", 0, 1250), (" Bye.", 1250, 2500))
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
                rec.Recognizer(id="whisper-tiny", languages=["en"], translates=self.translates)
            ]
        )


class FakeBackends:
    """One server that is llm, vocoder and recogniser at once."""

    def __init__(self) -> None:
        self.llm = FakeLlm()
        self.vocoder = FakeVocoder()
        self.recognition = FakeRecognition()
        self.lifecycle = Lifecycle(boot_id=f"boot-{time.monotonic_ns()}")
        self.port = 0
        self._server: RpcServer | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, *, ready: bool = True) -> None:
        node = NodeAdminServicer(self.lifecycle, lambda: ServerInfo("fake", "0"))
        server = RpcServer(
            service="fake", bind=f"127.0.0.1:{self.port}", lifecycle=self.lifecycle, node=node
        )
        added: tuple[tuple[Callable, object, str], ...] = (
            (
                llm_service_pb2_grpc.add_LlmServiceServicer_to_server,
                self.llm,
                "antiphon.llm.v1.LlmService",
            ),
            (
                vocoder_service_pb2_grpc.add_VocoderServiceServicer_to_server,
                self.vocoder,
                "antiphon.vocoder.v1.VocoderService",
            ),
            (
                recognition_service_pb2_grpc.add_RecognitionServiceServicer_to_server,
                self.recognition,
                "antiphon.vocoder.v1.RecognitionService",
            ),
        )
        for add, servicer, name in added:
            server.add(add, servicer, name)
        self._server = server
        self.lifecycle.booting("loading")
        self.port = await server.start()
        if ready:
            self.lifecycle.ready()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.0)


ENCODING_PCM16 = audio_pb2.AUDIO_ENCODING_PCM16
