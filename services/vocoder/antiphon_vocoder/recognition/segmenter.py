"""Cuts a stream into utterances: detector probabilities and commands in, spans of audio out.

Pure bookkeeping: no clock, no thread, no model. All decisions depend on the absolute index of
the 32 ms window or of the command, never on how the audio was cut into messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.recognition.history import AudioHistory, quietest_point
from antiphon_vocoder.recognition.messages import SHORTEST_PAUSE_MS, TurnOptions
from antiphon_vocoder.recognition.vad.detector import RATE, WINDOW
from antiphon_vocoder.recognition.vad.hysteresis import START_WINDOWS, Edge, Hysteresis

TAIL = RATE * SHORTEST_PAUSE_MS // 1000
"""Silence after the last voice that the recogniser hears."""
PRE_ROLL_MS = 300
"""Audio before the detected start that the recogniser hears, whatever the turn's prefix."""
CUT_SEARCH = 5 * RATE
_NEVER_MS = 1 << 40


@dataclass(frozen=True)
class SpeechStart:
    """Speech began; ``position`` is a sample index."""

    utterance: int
    position: int


@dataclass(frozen=True)
class SpeechStop:
    """Speech ended; ``position`` is a sample index."""

    utterance: int
    position: int
    end_probability: float | None = None
    """The judge's answer about the last pause, where there was one."""
    forced: bool = False
    """The judge refused the pause, and it grew too long or the input ended."""


@dataclass(frozen=True)
class Excerpt:
    """Audio of an utterance for the recogniser."""

    utterance: int
    start: int
    """Sample index of the first sample of ``audio``."""
    audio: NDArray[np.float32]

    @property
    def span(self) -> tuple[int, int, int]:
        """Equal spans of one stream hold equal samples."""
        return self.utterance, self.start, len(self.audio)


@dataclass(frozen=True)
class Progress(Excerpt):
    """The utterance goes on; a partial transcript is due."""


@dataclass(frozen=True)
class Pause(Excerpt):
    """A pause that may be the end; if it is, the Utterance has the same span."""


@dataclass(frozen=True)
class Candidate(Excerpt):
    """A pause that a judge is to accept or refuse as the end, before any further window."""


@dataclass(frozen=True)
class Utterance(Excerpt):
    """The utterance is over. ``audio`` is empty when no window was voice."""

    first: int
    """Sample index of the utterance's start."""
    last: int
    """Sample index of its end."""
    tag: str


SegmentEvent = SpeechStart | SpeechStop | Progress | Pause | Candidate | Utterance


class Segmenter:
    """The turn state of one stream.

    Call ``append`` with samples, then ``next_window`` and ``scored`` until there is no window
    left, before any command. A Candidate is answered by ``judged`` before anything else.

    Args:
        turns: turn detection at the start.
        max_samples: an utterance is cut at this length, at the quietest point of its last 5 s.
        pause_samples: silence after which a Pause is reported; None reports none.
        interval_samples: audio between two Progress reports; None reports none.
    """

    def __init__(
        self,
        turns: TurnOptions,
        *,
        max_samples: int,
        pause_samples: int | None,
        interval_samples: int | None,
    ) -> None:
        self.history = AudioHistory()
        self.position = 0
        """End of the last scored window."""
        self.utterances = 0
        """Utterances that are over or dropped: the number of the present one."""
        self._max_samples = max_samples
        self._pause_samples = pause_samples
        self._interval_samples = interval_samples
        self._manual = turns.manual
        self._turns = turns
        self._hysteresis = Hysteresis(turns.threshold, self._release_ms())
        self._floor = 0
        self._held: int | None = 0 if turns.manual else None
        self._start = 0
        self._audio_start = 0
        self._held_voice = False
        self._paused_at = -1
        self._judged_at = -1
        self._end_probability: float | None = None
        self._progress_at = 0

    @property
    def speaking(self) -> bool:
        """An utterance with voice is open."""
        return self._hysteresis.speaking

    def append(self, samples: NDArray[np.float32]) -> None:
        """Takes the next samples (n,) at 16 kHz."""
        self.history.append(samples)

    def next_window(self) -> NDArray[np.float32] | None:
        """The next unscored window (512,), valid until the next ``append``; None without one."""
        end = self.position + WINDOW
        return self.history.view(self.position, end) if end <= self.history.end else None

    def scored(self, probability: float) -> list[SegmentEvent]:
        """Takes the speech probability of the window that ``next_window`` returned."""
        self.position += WINDOW
        events: list[SegmentEvent] = []
        edge = self._hysteresis.feed(probability, self.position)
        if edge is Edge.STARTED:
            events += self._begin()
        elif edge is Edge.STOPPED:
            events += self._stop(self._hysteresis.voice_end, self.position)
        if self.speaking:
            events += self._follow()
        if self.speaking and self._turns.judged and not self._manual:
            events += self._propose()
        self._forget()
        return events

    def judged(self, probability: float) -> list[SegmentEvent]:
        """Takes the judge's answer about the last Candidate: the end, or the same turn goes on.

        A refused pause may last the longer the surer the refusal: up to the longest silence at
        probability 0, so that an answer just below the threshold costs little where it was wrong.
        """
        self._end_probability = probability
        turns = self._turns
        if probability < turns.end_threshold:
            more = max(0, turns.longest_silence_ms - turns.silence_ms)
            share = 1 - probability / turns.end_threshold
            self._hysteresis.silence_ms = turns.silence_ms + round(more * share)
            return []
        return self._stop(self._hysteresis.voice_end, self.position)

    def flush(self, tag: str) -> list[SegmentEvent]:
        """Ends the utterance at the last sample; without voice it is an empty one."""
        end = self.history.end
        first = self._held if self._held is not None else self._floor
        if self.speaking:
            utterance = self._utterance(end, end, tag)
        elif self._held_voice:
            self._audio_start = max(first, self.history.start)
            audio = self.history.copy(self._audio_start, end)
            utterance = Utterance(
                self.utterances, self._audio_start, audio, self._audio_start, end, tag
            )
        else:
            first = min(max(first, self.history.start), end)
            utterance = Utterance(self.utterances, first, _no_audio(), first, end, tag)
        self._close(end)
        return [utterance]

    def reset(self) -> None:
        """Drops the open utterance and all that was heard so far."""
        self._close(self.history.end)

    def set_turns(self, turns: TurnOptions) -> list[SegmentEvent]:
        """Changes turn detection from here on; what is buffered stays."""
        was_manual, self._manual = self._manual, turns.manual
        self._turns = turns
        self._hysteresis.threshold = turns.threshold
        self._hysteresis.silence_ms = self._release_ms()
        if turns.manual and not was_manual and not self.speaking:
            self._held = max(self._floor, self.history.start)
        if was_manual and not turns.manual and self.speaking:
            silence = self._hysteresis.silence(self.position)
            if silence * 1000 < self._release_ms() * RATE:
                self._held = None
                return [SpeechStart(self.utterances, self._start)]
            self._held = self._audio_start
            self._held_voice = True
            self._hysteresis.interrupt()
        return []

    def finish(self) -> list[SegmentEvent]:
        """Ends the input: an open utterance with voice is over."""
        if not self.speaking:
            return []
        end = self.history.end
        silence = self._hysteresis.silence(end)
        return self._stop(end if silence < WINDOW else self._hysteresis.voice_end, end)

    def _release_ms(self) -> int:
        if self._manual:
            return _NEVER_MS
        turns = self._turns
        return max(turns.silence_ms, turns.longest_silence_ms) if turns.judged else turns.silence_ms

    def _begin(self) -> list[SegmentEvent]:
        voice = self._hysteresis.voice_start
        held = self._held if self._held is not None else voice
        self._start = max(self._floor, min(held, voice - _samples(self._turns.prefix_ms)))
        pre_roll = voice - _samples(max(self._turns.prefix_ms, PRE_ROLL_MS))
        earliest = max(self._floor, self.history.start)
        # A manual turn may hold much silence before the voice, which the recogniser is spared.
        self._audio_start = max(earliest, pre_roll if self._manual else min(held, pre_roll))
        self._paused_at = -1
        self._progress_at = self._audio_start
        if self._manual:
            return []
        self._held = None
        self._held_voice = False
        return [SpeechStart(self.utterances, self._start)]

    def _stop(self, position: int, heard: int) -> list[SegmentEvent]:
        position = max(position, self._start)
        events: list[SegmentEvent] = []
        if not self._manual:
            is_judged = self._judged_at == self._hysteresis.voice_end
            probability = self._end_probability if is_judged else None
            refused = probability is not None and probability < self._turns.end_threshold
            events.append(SpeechStop(self.utterances, position, probability, refused))
        events.append(self._utterance(position, heard, ""))
        self._close(position)
        return events

    def _follow(self) -> list[SegmentEvent]:
        """Reports of an utterance that goes on: a forced cut, a pause, progress."""
        if self.position - self._audio_start >= self._max_samples:
            return [self._cut()]
        silence = self._hysteresis.silence(self.position)
        voice_end = self._hysteresis.voice_end
        if voice_end <= self._audio_start:
            return []
        if self._pause_samples is not None and silence >= self._pause_samples:
            if self._paused_at == voice_end:
                return []
            self._paused_at = voice_end
            self._progress_at = self.position
            return [Pause(self.utterances, self._audio_start, self._speech(self.position))]
        if self._interval_samples is None or silence > 0:
            return []
        if self.position - self._progress_at < self._interval_samples:
            return []
        self._progress_at = self.position
        return [Progress(self.utterances, self._audio_start, self._speech(self.position))]

    def _propose(self) -> list[SegmentEvent]:
        """The present pause, once it is long enough and unless it was judged."""
        voice_end = self._hysteresis.voice_end
        silence = self._hysteresis.silence(self.position)
        if voice_end == self._judged_at or silence * 1000 < self._turns.silence_ms * RATE:
            return []
        if voice_end <= self._audio_start:
            return []
        self._judged_at = voice_end
        return [Candidate(self.utterances, self._audio_start, self._speech(self.position))]

    def _cut(self) -> Utterance:
        """Ends an utterance that is too long; speech goes on in the next one."""
        search = self.position - CUT_SEARCH
        cut = search + quietest_point(self.history.view(search, self.position))
        audio = self.history.copy(self._audio_start, cut)
        utterance = Utterance(self.utterances, self._audio_start, audio, self._start, cut, "")
        self.utterances += 1
        self._floor = self._start = self._audio_start = self._progress_at = cut
        self._paused_at = -1
        if self._held is not None:
            self._held = cut
        if self._manual and self._hysteresis.voice_end <= cut:
            self._hysteresis.interrupt()
        return utterance

    def _utterance(self, last: int, heard: int, tag: str) -> Utterance:
        audio = self._speech(heard)
        return Utterance(self.utterances, self._audio_start, audio, self._start, last, tag)

    def _speech(self, heard: int) -> NDArray[np.float32]:
        """From the utterance's start to shortly after its last voice, but not past ``heard``."""
        voice_end = self._hysteresis.voice_end
        if voice_end <= self._audio_start:
            return _no_audio()
        return self.history.copy(self._audio_start, min(voice_end + TAIL, heard))

    def _close(self, position: int) -> None:
        self.utterances += 1
        self._floor = position
        self._held = position if self._manual else None
        self._held_voice = False
        self._judged_at = -1
        self._end_probability = None
        self._hysteresis.silence_ms = self._release_ms()
        self._hysteresis.interrupt()
        self._forget()

    def _forget(self) -> None:
        """Keeps what a coming utterance may need: O(one utterance)."""
        if self.speaking:
            keep = self._audio_start
        elif self._held is not None:
            keep = max(self._held, self.position - self._max_samples)
        else:
            longest = _samples(max(self._turns.prefix_ms, PRE_ROLL_MS)) + START_WINDOWS * WINDOW
            keep = max(self._floor, self.position - longest)
        self.history.forget_before(min(keep, self.position))


def _samples(milliseconds: int) -> int:
    return milliseconds * RATE // 1000


def _no_audio() -> NDArray[np.float32]:
    return np.zeros(0, np.float32)
