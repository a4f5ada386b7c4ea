"""State of one stream in the model process, and which stream's hop is next."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.messages import OpenStream, SpeakClause
from antiphon_vocoder.tts.piper import Latent
from antiphon_vocoder.tts.trim import SilenceTrimmer

FIRST_AUDIO_SECONDS = 0.150
"""A stream without audio yet is due so long after its first hop could have run."""
_HOP_SECONDS = 1.0
"""What a hop and what may run before it can take on busy cores: a listener who runs dry sooner
than the hops up to his next audio take comes before one who has heard nothing yet."""
_AHEAD_SECONDS = 0.8
"""A listener who has less is served by one hop at a time."""
_HOPS_AT_ONCE = 2
"""Of one stream. More would finish a long text sooner and keep a newcomer waiting on every core."""
_FIRST_WINDOWS = (0.35, 0.70)
_WINDOW_SECONDS = 1.10
_SHORTEST_LAST_SHARE = 0.5


def window_stops(frames: int, frames_per_second: float, *, first: bool) -> list[int]:
    """Ends of the windows that a clause is decoded in.

    Windows start small where a listener waits and grow, since each costs its context again. They
    follow from the clause alone, so that equal text is cut equally however it arrived.

    Args:
        frames: latent frames of the clause.
        frames_per_second: of the voice.
        first: whether the clause begins an utterance.
    """
    stops: list[int] = []
    position = 0
    while position < frames:
        seconds = _WINDOW_SECONDS
        if first and len(stops) < len(_FIRST_WINDOWS):
            seconds = _FIRST_WINDOWS[len(stops)]
        length = max(int(seconds * frames_per_second), 1)
        if frames - position - length < length * _SHORTEST_LAST_SHARE:
            length = frames - position
        position += length
        stops.append(position)
    return stops


@dataclass(eq=False)
class Window:
    """Frames ``start`` to ``stop`` of a clause, which one hop decodes."""

    start: int
    stop: int
    decoded: NDArray[np.float32] | None = None
    """Samples of the voice, kept here until those of earlier windows are sent."""
    hop_seconds: float = 0.0


@dataclass(eq=False)
class ClauseProgress:
    """A clause being spoken."""

    clause: SpeakClause
    latent: Latent | None = None
    """None while it is encoded."""
    trimmer: SilenceTrimmer = field(default_factory=lambda: SilenceTrimmer(0))
    waiting: deque[Window] = field(default_factory=deque)
    """No hop decodes them yet."""
    unsent: deque[Window] = field(default_factory=deque)
    """Being decoded or decoded, the first to be sent in front."""
    encode_seconds: float = 0.0
    emitted: int = 0
    """Samples sent."""
    words_ended: int = 0

    def begin(self, latent: Latent, rate: int, samples_per_frame: int, seconds: float) -> None:
        """Takes the clause as encoded.

        Args:
            latent: of the whole clause.
            rate: samples a second of the voice.
            samples_per_frame: of the voice.
            seconds: that the encoding took.
        """
        frame_rate = rate / samples_per_frame
        stops = window_stops(latent.frames, frame_rate, first=self.clause.first) or [0]
        self.waiting.extend(Window(*edges) for edges in pairwise([0, *stops]))
        self.latent = latent
        self.trimmer = SilenceTrimmer(rate)
        self.encode_seconds = seconds

    def ended_words(self, sample_count: int, samples_per_frame: int) -> list[tuple[int, int]]:
        """Words that end in the next ``sample_count`` samples: (word, sample among those).

        Counts the samples as sent. A word may end in silence that is trimmed; it then ends with
        the clause, which the caller marks.
        """
        ended = []
        ends = None if self.latent is None else self.latent.id_ends
        word_ends = self.clause.word_ends if ends is not None else []
        while ends is not None and self.words_ended < len(word_ends):
            frame = int(ends[word_ends[self.words_ended] - 1])
            sample = frame * samples_per_frame - self.trimmer.skipped - self.emitted
            if sample > sample_count:
                break
            ended.append((self.words_ended, max(sample, 0)))
            self.words_ended += 1
        self.emitted += sample_count
        return ended


@dataclass(eq=False)
class Hop:
    """What one worker does at a time: the encoding of a clause, or the decoding of one window."""

    stream: SpeechStream
    progress: ClauseProgress
    window: Window | None
    """None encodes."""


@dataclass(eq=False)
class SpeechStream:
    """One stream: what it waits for, how far it is, how far its listener is."""

    opened: OpenStream
    sample_rate: int
    clauses: deque[SpeakClause] = field(default_factory=deque)
    """Not begun."""
    begun: deque[ClauseProgress] = field(default_factory=deque)
    """The one being sent in front."""
    running: int = 0
    """Hops that workers have taken."""
    closed: bool = False
    dropped_through: int = -1
    produced: int = 0
    delivered: int = 0
    ready_at: float = 0.0
    """When its first hop since it last was idle could run."""
    began_at: float = -math.inf
    """When the encoding of its latest clause was taken."""
    first_audio_at: float | None = None

    @property
    def key(self) -> tuple[int, int]:
        """(slot, generation)."""
        return self.opened.slot, self.opened.generation

    def add(self, clause: SpeakClause, now: float) -> None:
        """Queues a clause."""
        if not self.clauses and not self.begun:
            self.ready_at = now
        self.clauses.append(clause)

    def drop_through(self, clause: int) -> int:
        """Forgets clauses up to this index; returns how many hops that saved at least."""
        self.dropped_through = max(self.dropped_through, clause)
        dropped = 0
        while self.begun and self.is_dropped(self.begun[0].clause):
            dropped += len(self.begun.popleft().waiting)
        while self.clauses and self.is_dropped(self.clauses[0]):
            self.clauses.popleft()
            dropped += 1
        return dropped

    def is_dropped(self, clause: SpeakClause) -> bool:
        """Whether the clause's audio is no longer wanted."""
        return self.closed or clause.clause <= self.dropped_through

    def can_run(self, lead_seconds: float, now: float) -> bool:
        """Whether a hop of it may be taken now: a second one beside the first once the listener has
        audio for longer than the first can take; before, it would only slow the first.

        Args:
            lead_seconds: unsent audio from which it is not scheduled.
            now: seconds.
        """
        hops_at_once = _HOPS_AT_ONCE if self.slack(now) >= _AHEAD_SECONDS else 1
        if self.closed or self.running >= hops_at_once:
            return False
        if not self.clauses and not any(progress.waiting for progress in self.begun):
            return False
        return self.produced - self.delivered < lead_seconds * self.sample_rate

    def take(self, now: float) -> Hop:
        """Its next hop, where ``can_run``: the next window, else the next clause's encoding."""
        self.running += 1
        for progress in self.begun:
            if progress.waiting:
                window = progress.waiting.popleft()
                progress.unsent.append(window)
                return Hop(self, progress, window)
        progress = ClauseProgress(self.clauses.popleft())
        self.begun.append(progress)
        self.began_at = now
        return Hop(self, progress, None)

    def decoded(self) -> Iterator[tuple[ClauseProgress, Window]]:
        """Removes and yields, in order, the windows that can be sent."""
        while self.begun and (unsent := self.begun[0].unsent) and unsent[0].decoded is not None:
            progress = self.begun[0]
            window = unsent.popleft()
            if not unsent and not progress.waiting:
                self.begun.popleft()
            yield progress, window

    def slack(self, now: float) -> float:
        """Seconds of audio produced beyond the time since the first; 0 before the first."""
        if self.first_audio_at is None:
            return 0.0
        return self.produced / self.sample_rate - (now - self.first_audio_at)

    def note_audio(self, sample_count: int, now: float) -> None:
        """Counts produced audio. A listener that ran dry starts anew: playback moves on."""
        if self.first_audio_at is None or self.slack(now) < 0:
            self.first_audio_at = now - self.produced / self.sample_rate
        self.produced += sample_count

    def deadline(self) -> float:
        """When the next hop has to begin: ``_HOP_SECONDS`` for each hop up to the next audio before
        the listener runs dry; before first audio, and after a pause for want of text,
        ``FIRST_AUDIO_SECONDS`` after it was ready or, so that those who came late do not all begin
        at once before listeners who wait, after it began."""
        dry_at = -math.inf
        if self.first_audio_at is not None:
            dry_at = self.first_audio_at + self.produced / self.sample_rate
        if dry_at <= self.ready_at:
            return max(self.ready_at, self.began_at) + FIRST_AUDIO_SECONDS
        is_encoded = any(progress.waiting for progress in self.begun)
        return dry_at - _HOP_SECONDS * (1 if is_encoded else 2)


def next_stream(
    streams: Iterable[SpeechStream], lead_seconds: float, now: float
) -> SpeechStream | None:
    """The stream whose hop runs next: the earliest deadline, ties to the lower slot. One that has
    a hop running comes after all that have none. Arguments as ``can_run`` takes them."""
    ready = (stream for stream in streams if stream.can_run(lead_seconds, now))
    return min(
        ready, key=lambda stream: (stream.running, stream.deadline(), stream.key), default=None
    )
