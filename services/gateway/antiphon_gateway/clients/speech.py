"""The speech synthesis service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc.aio
from antiphon.vocoder.v1 import vocoder_service_pb2, vocoder_service_pb2_grpc
from antiphon_core.rpc.context import ALL_TENANTS
from antiphon_core.rpc.streams import result

from antiphon_gateway.clients.stream import TwoWayStream
from antiphon_gateway.convert import speech as convert
from antiphon_gateway.domain.speech import (
    NewVoice,
    SpeechConfig,
    SpeechEvent,
    SpeechFinished,
    Voice,
)
from antiphon_gateway.quota.metering import speech_metered

ENDPOINT = "x-antiphon-endpoint"
"""Metadata that names the replica to a balancing proxy."""

_EVERYBODY = ((ALL_TENANTS, "1"),)

_TEXT_PIECE_CHARACTERS = 16_000
"""At most 64 KiB of UTF-8 a message, as the contract asks."""

_SAMPLE_PIECE_BYTES = 256 * 1024

_CODES_PIECE_FRAMES = 64
"""Small pieces, so that a stream which is ahead stops reading early."""


class SpeechStream(TwoWayStream[SpeechEvent]):
    """Text or codes in, audio out: SpeechReady, chunks and marks, SpeechFinished."""

    def __init__(self, call: Any, config: SpeechConfig) -> None:
        spoken = "" if config.code_format is None else config.code_format.codec
        named = config.model or config.voice or spoken
        super().__init__(call, speech_metered(convert.response_to_event, named), SpeechFinished)
        self._config = config

    @property
    def speaks_codes(self) -> bool:
        """Whether it takes codes, not text."""
        return self._config.code_format is not None

    async def _enter(self) -> None:
        await self._write(convert.config_to_proto(self._config))

    async def send_text(self, text: str) -> None:
        """Appends to the text; any cut of the same text gives the same samples."""
        for start in range(0, len(text), _TEXT_PIECE_CHARACTERS):
            await self._write(convert.text_to_proto(text[start : start + _TEXT_PIECE_CHARACTERS]))

    async def send_codes(self, codes: Sequence[int]) -> None:
        """Appends whole frames of codes, in the stream's code format; waits while the service
        has enough. Any cut of the same frames gives the same samples."""
        form = self._config.code_format
        assert form is not None, "the stream speaks text"
        most = _CODES_PIECE_FRAMES * form.codebook_count
        for start in range(0, len(codes), most):
            await self._write(convert.codes_to_proto(codes[start : start + most], form))

    async def flush(self) -> None:
        """Speaks what is buffered without waiting for the end of its clause."""
        await self._write(convert.flush_to_proto())

    async def clear(self) -> None:
        """Drops what has not been spoken."""
        await self._write(convert.clear_to_proto())


class SpeechClient:
    """One vocoder service.

    Args:
        channel: to the service, or to the proxy before it.
        endpoint: where a balancing proxy is to send the streams, ``address:port`` as it knows the
            replica; one that it does not know, it chooses for itself. Empty without a proxy.
    """

    def __init__(self, channel: grpc.aio.Channel, endpoint: str = "") -> None:
        self._stub: Any = vocoder_service_pb2_grpc.VocoderServiceStub(channel)
        self._metadata = ((ENDPOINT, endpoint),) if endpoint else ()

    def stream(self, config: SpeechConfig) -> SpeechStream:
        """Opens a speech stream; the configuration is sent on entering it."""
        call = self._stub.StreamSpeech(timeout=config.timeout, metadata=self._metadata)
        return SpeechStream(call, config)

    async def list_voices(self) -> tuple[Voice, ...]:
        """Voices, the default first, those of every tenant among them."""
        request = vocoder_service_pb2.ListVoicesRequest()
        response = await result(
            self._stub.ListVoices(request, timeout=2.0, metadata=(*self._metadata, *_EVERYBODY))
        )
        return tuple(convert.voice_from_proto(voice) for voice in response.voices)

    async def create_voice(self, voice: NewVoice, sample: bytes, timeout: float) -> Voice:
        """Makes a voice of the current tenant from a sample file."""
        requests = [convert.new_voice_to_proto(voice)]
        requests += [
            convert.sample_to_proto(sample[start : start + _SAMPLE_PIECE_BYTES])
            for start in range(0, len(sample), _SAMPLE_PIECE_BYTES)
        ]
        call = self._stub.CreateVoice(iter(requests), timeout=timeout, metadata=self._metadata)
        return convert.voice_from_proto((await result(call)).voice)

    async def delete_voice(self, voice_id: str, timeout: float, *, anybodys: bool) -> None:
        """Deletes a voice of the current tenant, or anybody's; its running streams end."""
        request = vocoder_service_pb2.DeleteVoiceRequest(id=voice_id)
        metadata = (*self._metadata, *(_EVERYBODY if anybodys else ()))
        await result(self._stub.DeleteVoice(request, timeout=timeout, metadata=metadata))
