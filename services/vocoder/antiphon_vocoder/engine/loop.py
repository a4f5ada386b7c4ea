"""The model process's loop: takes messages, runs hops in worker threads, sends audio.

A hop is a clause's encoding or the decoding of one window of it; windows do not depend on one
another. Which stream is next is decided anew for every hop (``next_stream``): cores that no other
stream needs decode ahead for one, and what they decode is sent in order.
The lock guards the streams and is never held during a hop.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence

import numpy as np
from antiphon_core.ipc.endpoint import Endpoint
from antiphon_core.memory import resident_bytes
from numpy.typing import NDArray

from antiphon_vocoder.engine.stream import (
    ClauseProgress,
    Hop,
    SpeechStream,
    Window,
    next_stream,
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
from antiphon_vocoder.tts.piper import Latent, PiperVoice

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
        self._cancelled_hops += stream.drop_through(stream.dropped_through)

    def _work(self) -> None:
        while (hop := self._take()) is not None:
            try:
                voice = self._voices.get(hop.stream.opened.voice)
                started = self._clock()
                result = self._run(hop, voice)
                self._commit(hop, voice, result, self._clock() - started)
            except Exception as error:
                traceback.print_exc()
                self._fail(hop.stream, error)
            finally:
                with self._changed:
                    hop.stream.running -= 1
                    self._changed.notify_all()

    def _take(self) -> Hop | None:
        with self._changed:
            while not self._stopping:
                now = self._clock()
                lead = self._config.lead_seconds
                stream = next_stream(self._streams.values(), lead, now)
                if stream is not None:
                    return stream.take(now)
                self._changed.wait()
        return None

    def _run(self, hop: Hop, voice: PiperVoice) -> Latent | NDArray[np.float32]:
        opened, progress, window = hop.stream.opened, hop.progress, hop.window
        if window is None or progress.latent is None:
            ids = progress.clause.phoneme_ids
            return voice.encode(ids, speed=opened.speed, noiseless=opened.noiseless)
        return voice.decode(progress.latent, window.start, window.stop)

    def _commit(
        self,
        hop: Hop,
        voice: PiperVoice,
        result: Latent | NDArray[np.float32],
        seconds: float,
    ) -> None:
        """Takes a hop's result; sends what is complete up to the first window still decoded."""
        stream, progress, window = hop.stream, hop.progress, hop.window
        with self._changed:
            if stream.is_dropped(progress.clause):
                self._cancelled_hops += 1
            elif isinstance(result, Latent):
                progress.begin(result, voice.sample_rate, voice.samples_per_frame, seconds)
            elif window is not None:
                window.decoded, window.hop_seconds = result, seconds
                for done in stream.decoded():
                    self._send(stream, voice, *done)

    def _send(
        self, stream: SpeechStream, voice: PiperVoice, progress: ClauseProgress, window: Window
    ) -> None:
        assert window.decoded is not None
        last = not progress.unsent and not progress.waiting
        samples = progress.trimmer.push(window.decoded)
        word_ends = progress.ended_words(len(samples), voice.samples_per_frame)
        if last:
            pause = int(progress.clause.pause_seconds * voice.sample_rate)
            samples = np.concatenate((samples, np.zeros(pause, np.float32)))
        samples, clipped = self._amplify(samples)
        encode_seconds, progress.encode_seconds = progress.encode_seconds, 0.0
        now = self._clock()
        self._endpoint.send(
            SpeechAudio(
                slot=stream.opened.slot,
                generation=stream.opened.generation,
                clause=progress.clause.clause,
                samples=samples.astype("<f4").tobytes(),
                clipped_count=clipped,
                last=last,
                hop_seconds=window.hop_seconds,
                encode_seconds=encode_seconds,
                slack_seconds=stream.slack(now),
                word_ends=word_ends,
            )
        )
        stream.note_audio(len(samples), now)

    def _amplify(self, samples: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
        """One fixed gain for all speech, so that no two clauses differ in level."""
        louder = samples * np.float32(self._config.gain)
        clipped = int(np.count_nonzero(np.abs(louder) > _CLIP))
        return np.clip(louder, -_CLIP, _CLIP), clipped

    def _fail(self, stream: SpeechStream, error: Exception) -> None:
        with self._changed:
            if stream.closed:
                return
            slot, generation = stream.key
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
