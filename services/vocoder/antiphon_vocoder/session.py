"""One speech stream: text comes in, audio goes out."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

import numpy as np
from antiphon_core.errors import AntiphonError
from numpy.typing import NDArray

from antiphon_vocoder.engine_client import EngineStream, SpeechEngine
from antiphon_vocoder.messages import SpeechAudio
from antiphon_vocoder.metrics import SpeechMetrics
from antiphon_vocoder.output import SpeechOutput
from antiphon_vocoder.session_items import (
    Clear,
    EndOfInput,
    Flush,
    Prepared,
    SpokenSegment,
    TextPiece,
)
from antiphon_vocoder.session_report import StreamReport
from antiphon_vocoder.slots import Lease
from antiphon_vocoder.speech import (
    Audio,
    Finished,
    FinishReason,
    Mark,
    Ready,
    SpeechEvent,
    SpeechPlan,
)
from antiphon_vocoder.stream_session import SessionLimits, StreamSession
from antiphon_vocoder.text.phonemizer import Phonemizer
from antiphon_vocoder.text.prepare import prepare_segment
from antiphon_vocoder.text.segmentation import (
    CLAUSE_LIMIT,
    SENTENCE_LIMIT,
    Boundary,
    Segment,
    TextSegmenter,
)

_PAUSE_SECONDS = {Boundary.SENTENCE: 0.200, Boundary.CLAUSE: 0.080}
_CLAUSES_AHEAD = 2
"""Clauses that the model process holds of one stream: one to speak, one to go on with."""
_BACKLOG_CHARACTERS = 1 << 20


class SpeechSession(StreamSession[SpeechEvent, EngineStream]):
    """See StreamSession.

    Args:
        plan: the checked configuration.
    """

    def __init__(
        self,
        plan: SpeechPlan,
        *,
        lease: Lease,
        engine: SpeechEngine,
        phonemizer: Phonemizer,
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
        self._phonemizer = phonemizer
        self._report = StreamReport(plan.model, metrics, accepted_at, input_kind="text")
        self._unread = 0
        self._segmenter = TextSegmenter(
            first_clause=not plan.whole_sentences,
            limit=SENTENCE_LIMIT if plan.whole_sentences else CLAUSE_LIMIT,
        )
        self._output = SpeechOutput(
            plan.encoding,
            plan.voice.sample_rate,
            plan.rate,
            exact_container=plan.exact_container,
            emit=self._emit_audio,
        )
        self._pending: deque[Segment] = deque()
        self._preparing: asyncio.Task[None] | None = None
        self._spoken: deque[SpokenSegment] = deque()
        self._epoch = 0
        self._clause_count = 0
        self._dropped_through = -1
        self._marked = 0
        self._counted = 0
        self._input_units = 0
        self._consumed = 0
        self._dropped_symbols = 0

    def add_text(self, text: str) -> None:
        """Takes the next piece of the text."""
        self._unread += len(text)
        self._note_backlog()
        self._inbox.put_nowait(TextPiece(text))

    def flush(self) -> None:
        """Speaks what is buffered without waiting for the end of its clause."""
        self._inbox.put_nowait(Flush())

    def clear(self) -> None:
        """Drops what has not been spoken."""
        self._inbox.put_nowait(Clear())

    async def _begin(self) -> None:
        self._stream = await self._engine.open(
            self._lease.slot,
            self._lease.generation,
            voice=self._plan.voice.id,
            speed=self._plan.speed,
            noiseless=self._plan.noiseless,
            sink=self._inbox.put_nowait,
        )
        plan = self._plan
        await self._emit(
            Ready(
                voice=plan.voice.id,
                model=plan.model,
                voice_fallback=plan.voice_fallback,
                encoding=plan.encoding,
                rate=plan.rate,
                queue_wait=self._lease.waited,
            )
        )

    def _release(self) -> None:
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None
        super()._release()

    async def _handle(self, item: object) -> None:
        if isinstance(item, SpeechAudio):
            await self._on_audio(item)
        elif isinstance(item, Prepared):
            self._on_prepared(item)
        else:
            self._idle_since = None
            self._on_input(item)

    def _on_input(self, item: object) -> None:
        if isinstance(item, TextPiece):
            self._report.input(self._clock())
            self._unread -= len(item.text)
            self._queue(self._segmenter.feed(item.text))
        elif isinstance(item, Flush):
            self._queue(self._segmenter.flush())
        elif isinstance(item, Clear):
            self._on_clear()
        elif isinstance(item, EndOfInput):
            self._input_ended = True
            self._queue(self._segmenter.flush())

    def _queue(self, segments: list[Segment]) -> None:
        if any(segment.text for segment in segments):
            self._report.speakable(self._clock())
        self._pending.extend(segments)

    def _on_clear(self) -> None:
        self._epoch += 1
        self._segmenter.clear()
        self._counted = self._segmenter.received
        self._pending.clear()
        self._spoken.clear()
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None
        self._dropped_through = self._clause_count - 1
        if self._stream is not None and self._clause_count:
            self._stream.drop_through(self._dropped_through)

    def _on_prepared(self, item: Prepared) -> None:
        if item.epoch != self._epoch or self._stream is None:
            return
        self._preparing = None
        prepared, segment = item.prepared, item.prepared.segment
        self._report.dropped_phonemes(prepared.dropped)
        self._dropped_symbols += prepared.dropped
        clause = self._clause_count
        self._clause_count += 1
        self._spoken.append(
            SpokenSegment(clause, segment.end, prepared.word_offsets, not prepared.ids)
        )
        if prepared.ids:
            self._stream.speak(
                clause,
                prepared.ids,
                word_ends=prepared.word_ends,
                pause_seconds=_PAUSE_SECONDS[segment.boundary],
                first=segment.first,
            )

    async def _on_audio(self, message: SpeechAudio) -> None:
        samples = np.frombuffer(message.samples, "<f4")
        self._consumed += len(samples)
        if message.clause > self._dropped_through:
            await self._say(message, samples)
        if self._stream is not None and not self._finished:
            self._stream.delivered(self._consumed)

    async def _say(self, message: SpeechAudio, samples: NDArray[np.float32]) -> None:
        before = self._output.source_count
        left = int(self._limits.longest * self._plan.voice.sample_rate) - before
        if len(samples) > left:
            await self._output.write(samples[: max(left, 0)])
            await self._finish(FinishReason.LENGTH)
            return
        if len(samples):
            await self._output.write(samples)
        spoken = next(part for part in self._spoken if part.clause == message.clause)
        for word, sample in message.word_ends:
            offset = spoken.word_offsets[word]
            if self._marked < offset < spoken.end:
                await self._mark(offset, self._output.sample_at(before + sample))
        spoken.done = message.last

    async def _go_on(self) -> None:
        """What follows from the state after each item: marks, the next clause, the end."""
        if self._finished:
            return
        while self._spoken and self._spoken[0].done:
            await self._mark(self._spoken.popleft().end, self._output.sample_count)
        self._prepare_next()
        self._note_backlog()
        if not (self._pending or self._preparing or self._spoken):
            self._report.silent()
            self._note_idle(not self._input_ended)
            if self._input_ended:
                await self._finish(FinishReason.COMPLETE)
        else:
            self._note_idle(False)

    def _prepare_next(self) -> None:
        waiting = sum(not spoken.done for spoken in self._spoken)
        if self._preparing is None and self._pending and waiting < _CLAUSES_AHEAD:
            segment = self._pending.popleft()
            self._preparing = asyncio.create_task(self._prepare(segment, self._epoch))

    async def _prepare(self, segment: Segment, epoch: int) -> None:
        try:
            prepared = await prepare_segment(segment, self._plan.voice, self._phonemizer)
            self._inbox.put_nowait(Prepared(prepared, epoch))
        except AntiphonError as error:
            self._inbox.put_nowait(error)

    async def _finish(self, reason: FinishReason) -> None:
        self._finished = True
        await self._output.finish()
        received = self._segmenter.received
        if reason is FinishReason.COMPLETE and self._marked < received:
            await self._mark(received, self._output.sample_count)
        audio_seconds = self._output.source_count / self._plan.voice.sample_rate
        first_audio, duration = self._report.finish(audio_seconds)
        await self._emit(
            Finished(
                reason=reason,
                sample_count=self._output.sample_count,
                input_units=self._input_units,
                time_to_first_audio=first_audio,
                duration=duration,
                audio_seconds=audio_seconds,
                dropped_symbols=self._dropped_symbols,
            )
        )

    async def _mark(self, offset: int, sample: int) -> None:
        self._input_units += offset - self._counted
        self._counted = self._marked = offset
        await self._emit(Mark(offset, sample))

    async def _emit_audio(self, event: Audio) -> None:
        await self._emit(event)
        self._report.audio(self._clock(), event.sample_count / self._plan.rate)

    def _note_backlog(self) -> None:
        backlog = self._unread + self._segmenter.buffered
        backlog += sum(segment.end - segment.start for segment in self._pending)
        if backlog > _BACKLOG_CHARACTERS:
            self._room.clear()
        else:
            self._room.set()
