"""One stream of audio that is encoded: bytes come in, codes go out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
from antiphon_core.errors import InvalidArgument
from numpy.typing import NDArray

from antiphon_vocoder.codec_client import CodecEngine, CodecOutput, CodecStream
from antiphon_vocoder.codec_messages import Stage
from antiphon_vocoder.codes import EncodedFrames, EncodeFinished, EncodePlan, EncodeReady
from antiphon_vocoder.formats import Encoding
from antiphon_vocoder.formats.pcm import RawDecoder
from antiphon_vocoder.session_items import EndOfInput
from antiphon_vocoder.slots import Lease
from antiphon_vocoder.speech import Progress
from antiphon_vocoder.stream_session import SessionLimits, StreamSession

EncodeEvent = EncodeReady | EncodedFrames | EncodeFinished | Progress

_BACKLOG_SECONDS = 60.0
"""Audio that is not encoded yet beyond which no more is read."""


@dataclass(frozen=True)
class AudioPiece:
    """The next bytes of the audio."""

    data: bytes


class EncodeSession(StreamSession[EncodeEvent, CodecStream]):
    """See StreamSession.

    Args:
        plan: the checked configuration.
        decoder: of the input, to the codec's rate.
    """

    def __init__(
        self,
        plan: EncodePlan,
        *,
        lease: Lease,
        engine: CodecEngine,
        decoder: RawDecoder,
        limits: SessionLimits,
        accepted_at: float,
        emit: Callable[[EncodeEvent], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            lease=lease, limits=limits, accepted_at=accepted_at, emit=emit, clock=clock
        )
        self._plan = plan
        self._engine = engine
        self._decoder = decoder
        self._longest_samples = int(limits.longest * plan.codec.sample_rate)
        self._longest_hop = plan.codec.hops[Stage.ENCODE][1] * plan.codec.frame_samples
        self._bytes_a_second = plan.rate * (2 if plan.encoding is Encoding.PCM16 else 1)
        self._unread_bytes = 0
        self._received = 0
        self._frames = 0

    def add_audio(self, data: bytes) -> None:
        """Takes the next bytes."""
        self._unread_bytes += len(data)
        self._note_backlog()
        self._inbox.put_nowait(AudioPiece(data))

    async def _begin(self) -> None:
        plan = self._plan
        self._stream = await self._engine.open(
            self._lease.slot,
            self._lease.generation,
            codec=plan.codec.name,
            stage=Stage.ENCODE,
            codebooks=plan.codebooks,
            sink=self._inbox.put_nowait,
        )
        await self._emit(EncodeReady(plan, self._lease.waited))

    async def _handle(self, item: object) -> None:
        if isinstance(item, CodecOutput):
            await self._on_output(item)
            return
        self._note_idle(False)
        if isinstance(item, AudioPiece):
            samples = await asyncio.to_thread(self._decoder.decode, item.data)
            self._unread_bytes -= len(item.data)
            self._push(samples)
        elif isinstance(item, EndOfInput) and self._stream is not None:
            self._input_ended = True
            self._push(self._decoder.flush())
            self._stream.flush(last=True)

    def _push(self, samples: NDArray[np.float32]) -> None:
        self._received += len(samples)
        if self._received > self._longest_samples:
            raise InvalidArgument(
                f"a stream has at most {self._limits.longest:g} s of audio",
                reason="TOO_LARGE",
                field="audio",
                metadata={"limit": f"{self._limits.longest:g}"},
            )
        if self._stream is not None and len(samples):
            self._stream.push(samples.astype("<f4", copy=False).tobytes())

    async def _on_output(self, output: CodecOutput) -> None:
        if output.data:
            self._frames += output.frames
            codes = np.frombuffer(output.data, "<i4").reshape(-1, self._plan.codebooks)
            await self._emit(EncodedFrames(codes, float(self._plan.codec.frame_rate)))
        if output.last:
            self._finished = True
            await self._emit(EncodeFinished(self._received, self._frames))
        elif self._stream is not None:
            self._stream.delivered(self._frames)

    async def _go_on(self) -> None:
        if self._finished:
            return
        self._note_backlog()
        self._note_idle(self._waiting < self._longest_hop and not self._input_ended)

    @property
    def _waiting(self) -> int:
        """Samples, at the codec's rate, that are not encoded yet."""
        return self._received - self._frames * self._plan.codec.frame_samples

    def _note_backlog(self) -> None:
        seconds = self._waiting / self._plan.codec.sample_rate
        if seconds + self._unread_bytes / self._bytes_a_second > _BACKLOG_SECONDS:
            self._room.clear()
        else:
            self._room.set()
