"""VocoderService: the wire contract over sessions, slots and voices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon.vocoder.v1.vocoder_service_pb2_grpc import VocoderServiceServicer
from antiphon_core.errors import AntiphonError, DeadlineExceeded, InvalidArgument, Unimplemented

from antiphon_vocoder.convert import speech_config, speech_response, speech_text, voice_message
from antiphon_vocoder.runtime import SpeechRuntime
from antiphon_vocoder.session import SpeechSession
from antiphon_vocoder.speech import SpeechConfig, SpeechEvent, plan_speech
from antiphon_vocoder.voices import MODEL

SpeechRequests = AsyncIterator[pb.StreamSpeechRequest]


class VocoderService(VocoderServiceServicer):
    """Serves speech synthesis from a started runtime."""

    def __init__(self, runtime: SpeechRuntime) -> None:
        self._runtime = runtime
        self._catalog = runtime.catalog

    async def StreamSpeech(
        self, request_iterator: SpeechRequests, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto. The slot is freed however the call ends."""
        runtime = self._runtime
        config = await self._first_config(request_iterator)
        plan = plan_speech(config, self._catalog)
        accepted_at = time.monotonic()
        lease = await runtime.slots.acquire()
        runtime.metrics.queue_wait.observe(lease.waited)

        async def emit(event: SpeechEvent) -> None:
            await context.write(speech_response(event))

        session = SpeechSession(
            plan,
            lease=lease,
            engine=runtime.engine,
            phonemizer=runtime.phonemizer,
            limits=runtime.limits,
            metrics=runtime.metrics,
            accepted_at=accepted_at,
            emit=emit,
        )
        reader = asyncio.create_task(_read(request_iterator, session), name="speech-input")
        try:
            await session.run()
        finally:
            session.close()
            reader.cancel()

    async def GetSlots(
        self, request: pb.GetSlotsRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetSlotsResponse:
        """Slots now."""
        slots = self._runtime.slots
        return pb.GetSlotsResponse(
            total=slots.total,
            busy=slots.busy,
            queued=slots.queued,
            cost={MODEL: self._runtime.engine.cost},
        )

    async def ListVoices(
        self, request: pb.ListVoicesRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListVoicesResponse:
        """All voices, the default first."""
        return pb.ListVoicesResponse(voices=map(voice_message, self._catalog.voices))

    async def GetVoice(
        self, request: pb.GetVoiceRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetVoiceResponse:
        """One voice by id or alias."""
        if not request.id:
            raise InvalidArgument("id is required", reason="MISSING_FIELD", field="id")
        return pb.GetVoiceResponse(voice=voice_message(self._catalog.get(request.id, field="id")))

    async def DecodeCodes(self, request_iterator: Any, context: grpc.aio.ServicerContext) -> None:
        """Not part of this build."""
        _refuse("DecodeCodes", "an audio codec")

    async def EncodeAudio(self, request_iterator: Any, context: grpc.aio.ServicerContext) -> None:
        """Not part of this build."""
        _refuse("EncodeAudio", "an audio codec")

    async def CreateVoice(
        self, request_iterator: Any, context: grpc.aio.ServicerContext
    ) -> pb.CreateVoiceResponse:
        """Not part of this build."""
        _refuse("CreateVoice", "a speech model that takes voice samples")

    async def DeleteVoice(
        self, request: pb.DeleteVoiceRequest, context: grpc.aio.ServicerContext
    ) -> pb.DeleteVoiceResponse:
        """Not part of this build."""
        _refuse("DeleteVoice", "a speech model that takes voice samples")

    async def _first_config(self, requests: SpeechRequests) -> SpeechConfig:
        idle = self._runtime.limits.idle
        try:
            async with asyncio.timeout(idle):
                first = await anext(requests, None)
        except TimeoutError:
            raise DeadlineExceeded(
                f"no configuration came within {idle:g} s", reason="INPUT_IDLE", field="config"
            ) from None
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
        return speech_config(first.config)


async def _read(requests: SpeechRequests, session: SpeechSession) -> None:
    """Feeds the session; an error of the input becomes the stream's end."""
    try:
        async for message in requests:
            _feed(message, session)
            await session.wait_for_room()
        session.end_input()
    except AntiphonError as error:
        session.fail(error)


def _feed(message: pb.StreamSpeechRequest, session: SpeechSession) -> None:
    kind = message.WhichOneof("message")
    if kind == "text":
        session.add_text(speech_text(message))
    elif kind == "flush":
        session.flush()
    elif kind == "clear":
        session.clear()
    else:
        problem = {
            "config": "config comes once, as the first message",
            "codes": "codes do not fit input kind TEXT",
        }.get(kind or "", "a message must have one of its fields set")
        raise InvalidArgument(
            problem,
            reason="STREAM_PROTOCOL",
            field=kind or "message",
            allowed=("text", "flush", "clear"),
        )


def _refuse(method: str, need: str) -> NoReturn:
    raise Unimplemented(f"{method} needs {need}, which this build does not serve", field=method)
