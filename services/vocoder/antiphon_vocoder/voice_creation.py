"""From a recording and its speaker's consent to a stored voice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from antiphon_core.errors import FailedPrecondition, InvalidArgument
from numpy.typing import NDArray
from safetensors.numpy import save

from antiphon_vocoder.codec_messages import CodecInfo, Stage
from antiphon_vocoder.codec_runtime import CodecRuntime
from antiphon_vocoder.codes import EncodedFrames, EncodePlan
from antiphon_vocoder.encode_session import EncodeEvent, EncodeSession
from antiphon_vocoder.formats import Encoding
from antiphon_vocoder.formats.decode import decode_blocks
from antiphon_vocoder.formats.encode import AudioEncoder
from antiphon_vocoder.formats.pcm import RAW_ENCODINGS, RawDecoder, pcm16_from_float
from antiphon_vocoder.formats.resample import resample
from antiphon_vocoder.recognition.vad import RATE, WINDOW, Detector, DetectorSet
from antiphon_vocoder.stored_voices import StoredVoices
from antiphon_vocoder.stream_session import SessionLimits
from antiphon_vocoder.voice_store.manifest import Consent, Manifest, new_voice_id
from antiphon_vocoder.voice_store.sample import MAX_SECONDS, check_sample

SAMPLE_RATE = 48_000
"""Of what is kept: no recording loses anything that a codec could use."""
PROMPT_SECONDS = 10.0
MAX_UPLOAD_BYTES = 25 * 1024 * 1024
_LONGEST_NAME = 128
_LONGEST_TRANSCRIPT = 4096
_SPEECH_PROBABILITY = 0.5
_PIECE_BYTES = 1 << 16
_AT_A_TIME = 1
"""Samples that are judged at once: each takes a core for about a second."""


@dataclass(frozen=True)
class VoiceRequest:
    """A new voice as the caller describes it."""

    display_name: str
    encoding: Encoding | None = None
    """None is told by the bytes."""
    sample_rate: int = 0
    transcript: str = ""
    language: str = ""
    consent: Consent | None = None


@dataclass(frozen=True)
class PreparedSample:
    """An accepted recording."""

    flac: bytes
    prompt: NDArray[np.float32]
    """(n,) mono at SAMPLE_RATE, from the first speech on, at most PROMPT_SECONDS."""


class VoiceMaker:
    """Judges samples and turns them into voices.

    Args:
        codec: its codecs make the conditioning.
        limits: of streams, for the codec's.
        require_consent: refuse a voice without its speaker's consent.
    """

    def __init__(
        self,
        voices: StoredVoices,
        codec: CodecRuntime,
        limits: SessionLimits,
        *,
        require_consent: bool,
    ) -> None:
        self._voices = voices
        self._codec = codec
        self._limits = limits
        self._require_consent = require_consent
        self._detectors = DetectorSet()
        self._turn = asyncio.Semaphore(_AT_A_TIME)

    def check(self, request: VoiceRequest, tenant: str) -> None:
        """Refuses what needs no look at the sample.

        Raises:
            FailedPrecondition: no codec takes samples, no store is configured (naming the
                setting), or CONSENT_REQUIRED.
            ResourceExhausted: QUOTA_SPENT.
            InvalidArgument: naming the field.
        """
        self._encoders()
        self._voices.require_room(tenant)
        if request.consent is None and self._require_consent:
            raise FailedPrecondition(
                "a voice needs the consent of its speaker",
                reason="CONSENT_REQUIRED",
                field="config.consent",
            )
        _check_text("display_name", request.display_name, 1, _LONGEST_NAME)
        _check_text("transcript", request.transcript, 0, _LONGEST_TRANSCRIPT)
        if request.encoding is not None and request.encoding in RAW_ENCODINGS:
            RawDecoder(request.encoding, request.sample_rate, RATE, field="config.format")

    async def make(self, request: VoiceRequest, data: bytes, tenant: str) -> Manifest:
        """Keeps a new voice of the tenant.

        Args:
            request: checked.
            data: the whole sample file.

        Raises:
            InvalidArgument: INVALID_AUDIO, it cannot be decoded or is not good enough.
            ResourceExhausted: the codec's queue, the disk or the tenant's voices are full.
        """
        async with self._turn:
            detector, _ = await asyncio.to_thread(self._detectors.resolve, "auto")
            sample = await asyncio.to_thread(prepare_sample, request, data, detector)
        codes = {codec.name: await self._encode(codec, sample.prompt) for codec in self._encoders()}
        conditioning = await asyncio.to_thread(_conditioning, codes, self._encoders())
        manifest = Manifest(
            id=new_voice_id(),
            display_name=request.display_name,
            owner=tenant,
            kind="cloned",
            models=list(codes),
            created_at=time.time(),
            sample_sha256="",
            transcript=request.transcript,
            language=request.language,
            consent=request.consent,
        )
        return await self._voices.add(manifest, sample=sample.flac, conditioning=conditioning)

    def _encoders(self) -> list[CodecInfo]:
        codecs = self._codec.catalog.codecs.values()
        able = [codec for codec in codecs if Stage.ENCODE in codec.stages]
        if not able:
            raise FailedPrecondition(
                "no model takes voice samples: the setting [vocoder] codecs names no codec that"
                " encodes",
                field="codecs",
            )
        return able

    async def _encode(self, codec: CodecInfo, prompt: NDArray[np.float32]) -> NDArray[np.int32]:
        """The prompt's codes (frames, codebooks), made in a slot beside the running streams."""
        engine = self._codec.engine
        assert engine is not None
        lease = await self._codec.slots.acquire()
        try:
            frames: list[NDArray[np.int32]] = []

            async def collect(event: EncodeEvent) -> None:
                if isinstance(event, EncodedFrames):
                    frames.append(event.codes)

            session = EncodeSession(
                EncodePlan(codec, codec.codebook_count, Encoding.PCM16, SAMPLE_RATE),
                lease=lease,
                engine=engine,
                decoder=RawDecoder(Encoding.PCM16, SAMPLE_RATE, codec.sample_rate),
                limits=self._limits,
                accepted_at=time.monotonic(),
                emit=collect,
            )
            session.add_audio(pcm16_from_float(prompt).astype("<i2").tobytes())
            session.end_input()
            await session.run()
        finally:
            lease.release()
        return np.concatenate(frames)


def prepare_sample(request: VoiceRequest, data: bytes, detector: Detector) -> PreparedSample:
    """Decodes, judges and cuts a sample; takes about a second of one core.

    Raises:
        InvalidArgument: INVALID_AUDIO or TOO_LARGE, naming ``audio``.
    """
    mono = _decoded(request, data)
    heard = resample(mono, SAMPLE_RATE, RATE)
    voiced = _voiced_windows(heard, detector) if len(heard) >= WINDOW else np.zeros(0, np.bool_)
    check_sample(heard, RATE, lambda _: voiced, WINDOW)
    start = int(np.argmax(voiced)) * WINDOW * SAMPLE_RATE // RATE
    encoder = AudioEncoder(Encoding.FLAC, SAMPLE_RATE, SAMPLE_RATE)
    flac = encoder.write(mono) + encoder.finish()
    return PreparedSample(flac, mono[start : start + int(PROMPT_SECONDS * SAMPLE_RATE)])


def _decoded(request: VoiceRequest, data: bytes) -> NDArray[np.float32]:
    most = int(MAX_SECONDS * SAMPLE_RATE)
    blocks: list[NDArray[np.float32]] = []
    for block in _blocks(request, data):
        blocks.append(block)
        if sum(map(len, blocks)) > most:
            raise InvalidArgument(
                f"the sample is longer than {MAX_SECONDS:g} s",
                reason="INVALID_AUDIO",
                field="audio",
                metadata={"limit": f"{MAX_SECONDS:g} s"},
            )
    return np.concatenate(blocks)


def _blocks(request: VoiceRequest, data: bytes) -> Iterator[NDArray[np.float32]]:
    if request.encoding is None or request.encoding not in RAW_ENCODINGS:
        yield from decode_blocks(data, SAMPLE_RATE)
        return
    decoder = RawDecoder(request.encoding, request.sample_rate, SAMPLE_RATE, field="config.format")
    for start in range(0, len(data), _PIECE_BYTES):
        yield decoder.decode(data[start : start + _PIECE_BYTES])
    yield decoder.flush()


def _voiced_windows(samples: NDArray[np.float32], detector: Detector) -> NDArray[np.bool_]:
    """Whether each whole window of samples (n,) at 16 kHz holds speech: (n // 512,)."""
    whole = samples[: len(samples) // WINDOW * WINDOW].reshape(-1, 1, WINDOW)
    state = detector.new_state()
    scores = [float(detector.score(window, [state])[0]) for window in whole]
    return np.array(scores) >= _SPEECH_PROBABILITY


def _conditioning(codes: dict[str, NDArray[np.int32]], codecs: Sequence[CodecInfo]) -> bytes:
    """A safetensors file: by codec its codes (frames, codebooks) int32; frame rates as metadata."""
    rates = {f"{codec.name}.frame_rate": str(float(codec.frame_rate)) for codec in codecs}
    return save({name: np.ascontiguousarray(array) for name, array in codes.items()}, rates)


def _check_text(field: str, text: str, shortest: int, longest: int) -> None:
    if not shortest <= len(text.strip()) or len(text) > longest:
        raise InvalidArgument(
            f"{field} must have {shortest} to {longest} characters",
            field=f"config.{field}",
            metadata={"limit": f"{shortest}..{longest}", "observed": str(len(text))},
        )
