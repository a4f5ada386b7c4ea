"""The result of one pass of the recogniser."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec

from antiphon_vocoder.recognition.messages import Segment
from antiphon_vocoder.recognition.speakers.centroid import Voice


class Effort(Enum):
    """How much work a pass is worth."""

    FULL = auto()
    """All beams; higher temperatures where the text looks wrong."""
    AHEAD = auto()
    """FULL's first attempt: where that is good enough, it is FULL's result."""
    DRAFT = auto()
    """Text that will be replaced."""


@dataclass(frozen=True)
class Transcript:
    """Text of one excerpt; times are milliseconds from its first sample."""

    segments: list[Segment]
    """Empty when there is no speech."""
    language: str
    heard_seconds: float
    """How far the pass got: text behind it needs a further pass."""
    is_settled: bool = True
    """Equal to the result of Effort.FULL."""
    no_speech: float = 1.0
    """Probability that there is no speech."""
    voices: list[Voice] = field(default_factory=list)
    """Of the segments, where speakers are told apart."""

    @property
    def confidence(self) -> float:
        """Geometric mean of the tokens' probabilities, 0 to 1; 0 without text."""
        counts = [len(segment.token_ids) for segment in self.segments]
        if not sum(counts):
            return 0.0
        logprobs = (segment.average_logprob for segment in self.segments)
        weighted = sum(mean * count for mean, count in zip(logprobs, counts, strict=True))
        return min(1.0, math.exp(weighted / sum(counts)))

    @property
    def text(self) -> str:
        """All segments' text, without surrounding spaces."""
        return "".join(segment.text for segment in self.segments).strip()


def shifted(segment: Segment, offset_ms: int, first_ms: int, last_ms: int) -> Segment:
    """The segment moved by ``offset_ms``, its times kept inside ``first_ms`` to ``last_ms``."""

    def move(time_ms: int) -> int:
        return min(max(time_ms + offset_ms, first_ms), last_ms)

    words = [
        msgspec.structs.replace(word, start_ms=move(word.start_ms), end_ms=move(word.end_ms))
        for word in segment.words
    ]
    return msgspec.structs.replace(
        segment, start_ms=move(segment.start_ms), end_ms=move(segment.end_ms), words=words
    )
