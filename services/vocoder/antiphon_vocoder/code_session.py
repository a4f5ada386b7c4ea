"""One stream of codes: frames come in, audio goes out."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.codec_client import CodecEngine, CodecOutput, CodecStream
from antiphon_vocoder.codec_messages import Stage
from antiphon_vocoder.codes import CodePlan
from antiphon_vocoder.metrics import SpeechMetrics
from antiphon_vocoder.output import SpeechOutput
from antiphon_vocoder.session_items import Clear, EndOfInput, Flush, VoiceDeleted
from antiphon_vocoder.session_report import StreamReport
from antiphon_vocoder.slots import Lease
from antiphon_vocoder.speech import Audio, Finished, FinishReason, Mark, Ready, SpeechEvent
from antiphon_vocoder.stream_session import SessionLimits, StreamSession

_BACKLOG_SECONDS = 60.0
"""Undecoded input beyond which no more is read."""


@dataclass(frozen=True)
class CodePiece:
    """The next frames (n, codebooks)."""

    frames: NDArray[np.int32]


class CodeSession(StreamSession[SpeechEvent, CodecStream]):
    """See StreamSession. Offsets count frames of all input, those cleared included.

    Args:
        plan: the checked configuration.
    """

    def __init__(
        self,
        plan: CodePlan,
        *,
        lease: Lease,
        engine: CodecEngine,
        limits: SessionLimits,
        metrics: SpeechMetrics,
        accepted_at: float,
        emit: Callable[[SpeechEvent], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            lease=lease, limits=limits, accepted_at=accepted_at, emit=emit, clock=clock
        )
        self._plan = plan
        self._engine = engine
        codec = plan.codec
        self._frame_seconds = codec.frame_samples / codec.sample_rate
        self._first_hop, self._longest_hop = codec.hops[Stage.DECODE]
        self._report = StreamReport(codec.name, metrics, accepted_at, input_kind="codes")
        self._output = SpeechOutput(
            plan.encoding,
            codec.sample_rate,
            plan.rate,
            exact_container=plan.exact_container,
            emit=self._emit_audio,
        )
        self._epoch = 0
        self._unread = 0
        self._received = 0
        self._position = 0
        self._consumed = 0
        self._input_units = 0
        self._marked = (0, 0)

    def add_frames(self, frames: NDArray[np.int32]) -> None:
        """Takes the next frames (n, codebooks), checked."""
        self._unread += len(frames)
        self._note_backlog()
        self._inbox.put_nowait(CodePiece(frames))

    def flush(self) -> None:
        """Decodes what is buffered without waiting for the frames that would fill a hop."""
        self._inbox.put_nowait(Flush())

    def clear(self) -> None:
        """Drops what has not been decoded."""
        self._inbox.put_nowait(Clear())

    def end_with_voice(self) -> None:
        """The stream's voice was deleted: nothing is said behind the present hop."""
        self._inbox.put_nowait(VoiceDeleted())

    async def _begin(self) -> None:
        plan = self._plan
        self._stream = await self._engine.open(
            self._lease.slot,
            self._lease.generation,
            codec=plan.codec.name,
            stage=Stage.DECODE,
            codebooks=plan.codebooks,
            sink=self._inbox.put_nowait,
        )
        await self._emit(
            Ready(
                voice=plan.voice,
                model=plan.codec.name,
                voice_fallback=plan.voice_fallback,
                encoding=plan.encoding,
                rate=plan.rate,
                queue_wait=self._lease.waited,
            )
        )

    async def _handle(self, item: object) -> None:
        if isinstance(item, CodecOutput):
            await self._on_output(item)
        elif isinstance(item, VoiceDeleted):
            await self._finish(FinishReason.VOICE_DELETED)
        elif self._stream is not None:
            self._note_idle(False)
            self._on_input(item, self._stream)

    def _on_input(self, item: object, stream: CodecStream) -> None:
        if isinstance(item, CodePiece):
            now = self._clock()
            self._report.input(now)
            self._unread -= len(item.frames)
            self._received += len(item.frames)
            stream.push(item.frames.astype("<i4", copy=False).tobytes())
            if self._received - self._position >= self._first_hop:
                self._report.speakable(now)
        elif isinstance(item, Flush):
            self._note_speakable()
            stream.flush(last=False)
        elif isinstance(item, Clear):
            self._epoch += 1
            self._position = self._received
            stream.clear(self._epoch)
        elif isinstance(item, EndOfInput):
            self._input_ended = True
            self._note_speakable()
            stream.flush(last=True)

    def _note_speakable(self) -> None:
        if self._received > self._position:
            self._report.speakable(self._clock())

    async def _on_output(self, output: CodecOutput) -> None:
        self._consumed += output.frames
        if output.epoch == self._epoch:
            await self._say(output)
        if self._finished:
            return
        if output.last:
            await self._finish(FinishReason.COMPLETE)
        elif self._stream is not None:
            self._stream.delivered(self._consumed)

    async def _say(self, output: CodecOutput) -> None:
        samples = np.frombuffer(output.data, "<f4")
        left = int(self._limits.longest * self._plan.codec.sample_rate) - self._output.source_count
        if len(samples) > left:
            await self._output.write(samples[: max(left, 0)])
            await self._finish(FinishReason.LENGTH)
            return
        if len(samples):
            await self._output.write(samples)
        if output.frames:
            self._position += output.frames
            self._input_units += output.frames
            await self._mark(self._position)

    async def _go_on(self) -> None:
        if self._finished:
            return
        self._note_backlog()
        waiting = self._received - self._position
        if waiting == 0:
            self._report.silent()
        # Less than a hop is left to the input's next piece, so there may be nothing to do.
        self._note_idle(waiting < self._longest_hop and not self._input_ended)

    async def _finish(self, reason: FinishReason) -> None:
        self._finished = True
        await self._output.finish()
        if reason is FinishReason.COMPLETE:
            await self._mark(self._received)
        audio_seconds = self._output.source_count / self._plan.codec.sample_rate
        first_audio, duration = self._report.finish(audio_seconds)
        await self._emit(
            Finished(
                reason=reason,
                sample_count=self._output.sample_count,
                input_units=self._input_units,
                time_to_first_audio=first_audio,
                duration=duration,
                audio_seconds=audio_seconds,
                dropped_symbols=0,
            )
        )

    async def _mark(self, offset: int) -> None:
        """Says that the input up to an offset ends here, unless that was said."""
        mark = (offset, self._output.sample_count)
        if mark != self._marked:
            self._marked = mark
            await self._emit(Mark(*mark))

    async def _emit_audio(self, event: Audio) -> None:
        await self._emit(event)
        self._report.audio(self._clock(), event.sample_count / self._plan.rate)

    def _note_backlog(self) -> None:
        waiting = (self._unread + self._received - self._position) * self._frame_seconds
        if waiting > _BACKLOG_SECONDS:
            self._room.clear()
        else:
            self._room.set()
