"""VocoderService: the wire contract over sessions, slots, voices and codecs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon.vocoder.v1.vocoder_service_pb2_grpc import VocoderServiceServicer
from antiphon_core.errors import (
    DeadlineExceeded,
    InvalidArgument,
    ResourceExhausted,
)
from antiphon_core.rpc.context import ALL_TENANTS, current

from antiphon_vocoder.code_convert import (
    codec_message,
    decode_plan,
    decode_response,
    encode_plan,
    encode_response,
    spoken_codes_plan,
)
from antiphon_vocoder.code_session import CodeSession
from antiphon_vocoder.codec_client import MODEL_GROUP, CodecEngine
from antiphon_vocoder.codec_messages import Stage
from antiphon_vocoder.codes import CodePlan, no_codec
from antiphon_vocoder.convert import speech_config, speech_response, voice_message
from antiphon_vocoder.encode_session import EncodeEvent, EncodeSession
from antiphon_vocoder.formats.pcm import RawDecoder
from antiphon_vocoder.runtime import SpeechRuntime
from antiphon_vocoder.session import SpeechSession
from antiphon_vocoder.slots import Lease, SlotPool
from antiphon_vocoder.speech import Progress, SpeechEvent, plan_speech
from antiphon_vocoder.stored_voices import text_refused
from antiphon_vocoder.stream_input import (
    Requests,
    feed_audio,
    feed_codes,
    feed_text,
    out_of_place,
    serve,
)
from antiphon_vocoder.voice_convert import stored_voice_message, voice_request
from antiphon_vocoder.voice_creation import MAX_UPLOAD_BYTES
from antiphon_vocoder.voice_store.manifest import Manifest
from antiphon_vocoder.voices import MODEL, require_voice_id


class VocoderService(VocoderServiceServicer):
    """Serves speech synthesis and codecs from a started runtime."""

    def __init__(self, runtime: SpeechRuntime) -> None:
        self._runtime = runtime
        self._catalog = runtime.catalog

    async def StreamSpeech(
        self, request_iterator: Requests, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto. The slot is freed however the call ends."""
        first = await self._first_config(request_iterator)
        config = speech_config(first)

        async def emit(event: SpeechEvent) -> None:
            await context.write(speech_response(event))

        stored = self._runtime.voices.find(config.voice, current().tenant)
        if config.codes:
            catalog = self._runtime.codec.catalog
            if stored is not None:
                catalog = catalog.including(stored.id, stored.models)
            plan = spoken_codes_plan(first, catalog)
            await self._decode(request_iterator, plan, emit, stored)
            return
        if stored is not None and not config.default_for_unknown_voice:
            raise text_refused(stored)
        plan = plan_speech(config, self._catalog)
        accepted_at = time.monotonic()
        lease = await self._slot(MODEL, self._runtime.slots, emit)
        try:
            session = SpeechSession(
                plan,
                lease=lease,
                engine=self._runtime.engine,
                phonemizer=self._runtime.phonemizer,
                limits=self._runtime.limits,
                metrics=self._runtime.metrics,
                accepted_at=accepted_at,
                emit=emit,
            )
            await serve(request_iterator, session, lambda message: feed_text(message, session))
        finally:
            lease.release()

    async def DecodeCodes(
        self, request_iterator: Requests, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        self._codec_engine()
        config = await self._first_config(request_iterator)
        plan = decode_plan(config, self._runtime.codec.catalog)

        async def emit(event: SpeechEvent) -> None:
            await context.write(decode_response(event))

        await self._decode(request_iterator, plan, emit)

    async def EncodeAudio(
        self, request_iterator: Requests, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        engine = self._codec_engine()
        config = await self._first_config(request_iterator)
        plan = encode_plan(config, self._runtime.codec.catalog)
        decoder = RawDecoder(
            plan.encoding, plan.rate, plan.codec.sample_rate, field="config.input_format"
        )
        accepted_at = time.monotonic()

        async def emit(event: EncodeEvent) -> None:
            await context.write(encode_response(event))

        lease = await self._slot(MODEL_GROUP, self._runtime.codec.slots, emit)
        try:
            session = EncodeSession(
                plan,
                lease=lease,
                engine=engine,
                decoder=decoder,
                limits=self._runtime.limits,
                accepted_at=accepted_at,
                emit=emit,
            )
            await serve(request_iterator, session, lambda message: feed_audio(message, session))
        finally:
            lease.release()

    async def GetSlots(
        self, request: pb.GetSlotsRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetSlotsResponse:
        """Slots now."""
        runtime = self._runtime
        cost = {MODEL: runtime.engine.cost}
        for name, codec in runtime.codec.catalog.codecs.items():
            cost[name] = codec.cost.get(Stage.DECODE, codec.cost.get(Stage.ENCODE, 0.0))
        names = {MODEL: "text", MODEL_GROUP: "codec"}
        models = {MODEL: [MODEL], MODEL_GROUP: list(runtime.codec.catalog.codecs)}
        pools = runtime.pools
        return pb.GetSlotsResponse(
            total=sum(pool.total for pool in pools.values()),
            busy=sum(pool.busy for pool in pools.values()),
            queued=sum(pool.queued for pool in pools.values()),
            cost=cost,
            groups=[
                pb.SlotGroup(
                    name=names[model],
                    total=pool.total,
                    busy=pool.busy,
                    queued=pool.queued,
                    models=models[model],
                )
                for model, pool in pools.items()
            ],
        )

    async def ListCodecs(
        self, request: pb.ListCodecsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListCodecsResponse:
        """What a stream of codes may name."""
        catalog = self._runtime.codec.catalog
        return pb.ListCodecsResponse(
            codecs=[
                codec_message(codec, catalog.bound_to(name))
                for name, codec in catalog.codecs.items()
            ]
        )

    async def ListVoices(
        self, request: pb.ListVoicesRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListVoicesResponse:
        """Presets, the default first, then the voices of the caller's tenant."""
        stored = self._runtime.voices.visible(_tenant_of(context))
        return pb.ListVoicesResponse(
            voices=[
                *map(voice_message, self._catalog.voices),
                *map(self._stored_voice, stored),
            ]
        )

    async def GetVoice(
        self, request: pb.GetVoiceRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetVoiceResponse:
        """One voice by id or alias."""
        # An alias may be written in any case.
        require_voice_id(request.id.lower(), field="id")
        stored = self._runtime.voices.find(request.id, current().tenant)
        if stored is not None:
            return pb.GetVoiceResponse(voice=self._stored_voice(stored))
        return pb.GetVoiceResponse(voice=voice_message(self._catalog.get(request.id, field="id")))

    async def CreateVoice(
        self, request_iterator: Requests, context: grpc.aio.ServicerContext
    ) -> pb.CreateVoiceResponse:
        """See the proto; what needs no look at the sample is refused before it comes."""
        tenant = current().tenant
        request = voice_request(await self._first_config(request_iterator))
        maker = self._runtime.voice_maker
        maker.check(request, tenant)
        data = await self._sample(request_iterator)
        voice = await maker.make(request, data, tenant)
        return pb.CreateVoiceResponse(voice=self._stored_voice(voice))

    async def DeleteVoice(
        self, request: pb.DeleteVoiceRequest, context: grpc.aio.ServicerContext
    ) -> pb.DeleteVoiceResponse:
        """Only its tenant and administration may; presets belong to nobody."""
        require_voice_id(request.id, field="id")
        await self._runtime.voices.delete(request.id, _tenant_of(context), drain=request.drain)
        return pb.DeleteVoiceResponse()

    async def _decode(
        self, requests: Requests, plan: CodePlan, emit: Any, stored: Manifest | None = None
    ) -> None:
        """Serves a stream of codes, with a voice or without."""
        runtime = self._runtime
        accepted_at = time.monotonic()
        lease = await self._slot(MODEL_GROUP, runtime.codec.slots, emit)
        try:
            session = CodeSession(
                plan,
                lease=lease,
                engine=self._codec_engine(),
                limits=runtime.limits,
                metrics=runtime.metrics,
                accepted_at=accepted_at,
                emit=emit,
            )
            with runtime.voices.speaking(stored, session.end_with_voice):
                await serve(requests, session, lambda message: feed_codes(message, session, plan))
        finally:
            lease.release()

    async def _sample(self, requests: Requests) -> bytes:
        """All bytes of an uploaded sample."""
        data = bytearray()
        while (message := await self._next(requests, "audio")) is not None:
            if message.WhichOneof("message") != "audio":
                out_of_place(message.WhichOneof("message"), "", ("audio",))
            data += message.audio
            if len(data) > MAX_UPLOAD_BYTES:
                raise InvalidArgument(
                    f"a sample has at most {MAX_UPLOAD_BYTES} bytes",
                    reason="TOO_LARGE",
                    field="audio",
                    metadata={"limit": str(MAX_UPLOAD_BYTES)},
                )
        return bytes(data)

    def _stored_voice(self, voice: Manifest) -> pb.Voice:
        codecs = self._runtime.codec.catalog.codecs
        served = next((codecs[name] for name in voice.models if name in codecs), None)
        return stored_voice_message(voice, served.sample_rate if served is not None else 0)

    def _codec_engine(self) -> CodecEngine:
        engine = self._runtime.codec.engine
        if engine is None:
            raise no_codec()
        return engine

    async def _slot(
        self, model: str, pool: SlotPool, emit: Callable[[Progress], Awaitable[None]]
    ) -> Lease:
        """A slot; while it is waited for, progress keeps proxies from cutting the stream."""
        metrics = self._runtime.metrics
        accepted_at = time.monotonic()
        waiting = asyncio.ensure_future(pool.acquire())
        try:
            while not (await asyncio.wait({waiting}, timeout=self._runtime.limits.progress))[0]:
                await emit(Progress(time.monotonic() - accepted_at))
        except BaseException:
            if not waiting.cancel() and waiting.exception() is None:
                waiting.result().release()
            raise
        try:
            lease = waiting.result()
        except ResourceExhausted:
            metrics.refused.labels(model).inc()
            raise
        metrics.queue_wait.labels(model).observe(lease.waited)
        return lease

    async def _first_config(self, requests: Requests) -> Any:
        """The configuration that every stream begins with, still a message."""
        first = await self._next(requests, "config")
        if first is None:
            raise InvalidArgument(
                "the stream ended before its configuration", reason="MISSING_FIELD", field="config"
            )
        if first.WhichOneof("message") != "config":
            raise InvalidArgument(
                "the first message of the stream must be config",
                reason="STREAM_PROTOCOL",
                field=first.WhichOneof("message") or "message",
                allowed=("config",),
            )
        return first.config

    async def _next(self, requests: Requests, wanted: str) -> Any:
        """The next message; None where the input ended."""
        idle = self._runtime.limits.idle
        try:
            async with asyncio.timeout(idle):
                return await anext(requests, None)
        except TimeoutError:
            raise DeadlineExceeded(
                f"no {wanted} came within {idle:g} s", reason="INPUT_IDLE", field=wanted
            ) from None


def _tenant_of(context: grpc.aio.ServicerContext) -> str | None:
    """Whose voices a call is about: the caller's tenant, or None for those of all tenants."""
    metadata = context.invocation_metadata() or ()
    everybody = (ALL_TENANTS, "1") in {(key, value) for key, value in metadata}
    return None if everybody else current().tenant
