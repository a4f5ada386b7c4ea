"""The model process's loop: takes messages, runs hops in worker threads, sends audio.

A hop is a clause's encoding or the decoding of one window of it. A stream has at most one hop at a
time; which stream is next is decided anew for every hop (``next_stream``). The lock guards the
streams' table and is never held during a hop.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from antiphon_core.ipc.endpoint import Endpoint
from antiphon_core.memory import resident_bytes
from numpy.typing import NDArray

from antiphon_vocoder.engine.stream import (
    ClauseProgress,
    SpeechStream,
    next_stream,
    window_stops,
)
from antiphon_vocoder.engine.voices import LoadedVoices
from antiphon_vocoder.messages import (
    CloseStream,
    Delivered,
    DropClauses,
    EngineConfig,
    EngineStats,
    OpenStream,
    SpeakClause,
    SpeechAudio,
    Stop,
    StreamFailed,
)
from antiphon_vocoder.tts.trim import SilenceTrimmer

_STATS_SECONDS = 1.0
_CLIP = 0.99


class EngineLoop:
    """All streams of the process.

    Args:
        endpoint: the front.
        config: workers, gain and lead.
        voices: loaded voices.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        config: EngineConfig,
        voices: LoadedVoices,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._config = config
        self._voices = voices
        self._clock = clock
        self._changed = threading.Condition()
        self._streams: dict[int, SpeechStream] = {}
        self._stopping = False
        self._cancelled_hops = 0
        self._stats_at = clock()

    def run(self) -> None:
        """Serves until Stop."""
        workers = [
            threading.Thread(target=self._work, name=f"hop-{index}", daemon=True)
            for index in range(self._config.workers)
        ]
        for worker in workers:
            worker.start()
        while not self._stopping:
            self._endpoint.wait(_STATS_SECONDS)
            self.accept(self._endpoint.drain())
            self._send_stats()
        for worker in workers:
            worker.join()

    def accept(self, messages: Sequence[object]) -> None:
        """Applies messages of the front, in order."""
        with self._changed:
            for message in messages:
                self._handle(message)
            self._changed.notify_all()

    def _handle(self, message: object) -> None:
        if isinstance(message, Stop):
            self._stopping = True
        elif isinstance(message, OpenStream):
            self._close(message.slot)
            rate = self._voices.sample_rate(message.voice)
            self._streams[message.slot] = SpeechStream(message, rate)
        elif isinstance(message, SpeakClause | DropClauses | Delivered | CloseStream):
            stream = self._streams.get(message.slot)
            if stream is not None and stream.opened.generation == message.generation:
                self._handle_for(stream, message)

    def _handle_for(
        self, stream: SpeechStream, message: SpeakClause | DropClauses | Delivered | CloseStream
    ) -> None:
        if isinstance(message, SpeakClause):
            stream.add(message, self._clock())
        elif isinstance(message, DropClauses):
            self._cancelled_hops += stream.drop_through(message.clause)
        elif isinstance(message, Delivered):
            stream.delivered = message.sample_count
        else:
            self._close(message.slot)

    def _close(self, slot: int) -> None:
        stream = self._streams.pop(slot, None)
        if stream is None:
            return
        stream.closed = True
        if stream.clauses:
            self._cancelled_hops += stream.drop_through(stream.clauses[-1].clause)
        elif stream.current is not None:
            self._cancelled_hops += stream.drop_through(stream.current.clause.clause)

    def _work(self) -> None:
        while (stream := self._take()) is not None:
            try:
                message = self._hop(stream)
            except Exception as error:
                traceback.print_exc()
                self._fail(stream, error)
                continue
            self._commit(stream, message)

    def _take(self) -> SpeechStream | None:
        with self._changed:
            while not self._stopping:
                stream = next_stream(self._streams.values(), self._config.lead_seconds)
                if stream is not None:
                    stream.busy = True
                    return stream
                self._changed.wait()
        return None

    def _hop(self, stream: SpeechStream) -> SpeechAudio | None:
        """Runs the stream's next hop; None for an encoding, which gives no audio."""
        started = self._clock()
        voice = self._voices.get(stream.opened.voice)
        progress = stream.current
        if progress is None:
            clause = stream.clauses[0]
            latent = voice.encode(
                clause.phoneme_ids, speed=stream.opened.speed, noiseless=stream.opened.noiseless
            )
            rate = voice.sample_rate / voice.samples_per_frame
            stream.current = ClauseProgress(
                clause=clause,
                latent=latent,
                stops=deque(window_stops(latent.frames, rate, first=clause.first)),
                trimmer=SilenceTrimmer(voice.sample_rate),
                encode_seconds=self._clock() - started,
            )
            return None
        stop = progress.stops.popleft()
        decoded = voice.decode(progress.latent, progress.position, stop)
        progress.position = stop
        samples = progress.trimmer.push(decoded)
        word_ends = progress.ended_words(len(samples), voice.samples_per_frame)
        last = not progress.stops
        if last:
            pause = int(progress.clause.pause_seconds * voice.sample_rate)
            samples = np.concatenate((samples, np.zeros(pause, np.float32)))
        samples, clipped = self._amplify(samples)
        encode_seconds, progress.encode_seconds = progress.encode_seconds, 0.0
        return SpeechAudio(
            slot=stream.opened.slot,
            generation=stream.opened.generation,
            clause=progress.clause.clause,
            samples=samples.astype("<f4").tobytes(),
            clipped_count=clipped,
            last=last,
            hop_seconds=self._clock() - started,
            encode_seconds=encode_seconds,
            slack_seconds=stream.slack(self._clock()),
            word_ends=word_ends,
        )

    def _amplify(self, samples: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
        """One fixed gain for all speech, so that no two clauses differ in level."""
        louder = samples * np.float32(self._config.gain)
        clipped = int(np.count_nonzero(np.abs(louder) > _CLIP))
        return np.clip(louder, -_CLIP, _CLIP), clipped

    def _commit(self, stream: SpeechStream, message: SpeechAudio | None) -> None:
        with self._changed:
            stream.busy = False
            progress = stream.current
            if progress is not None and stream.is_dropped(progress.clause):
                self._cancelled_hops += 1 + len(progress.stops)
                stream.current = None
            elif message is None:
                stream.clauses.popleft()
            else:
                if message.last:
                    stream.current = None
                stream.note_audio(len(message.samples) // 4, self._clock())
                self._endpoint.send(message)
            self._changed.notify()

    def _fail(self, stream: SpeechStream, error: Exception) -> None:
        with self._changed:
            stream.busy = False
            slot, generation = stream.key
            if self._streams.get(slot) is stream:
                del self._streams[slot]
            stream.closed = True
            self._endpoint.send(
                StreamFailed(
                    slot=slot, generation=generation, error=f"{type(error).__name__}: {error}"
                )
            )

    def _send_stats(self) -> None:
        now = self._clock()
        if now - self._stats_at < _STATS_SECONDS:
            return
        self._stats_at = now
        with self._changed:
            cancelled, self._cancelled_hops = self._cancelled_hops, 0
        self._endpoint.send(EngineStats(cancelled_hops=cancelled, resident_bytes=resident_bytes()))
