"""Labels of voices, one after the other, by their nearness to the voices so far."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon_vocoder.recognition.speakers.embedder import Embedding

MOST_SPEAKERS = len(string.ascii_uppercase)
NEW_SECONDS = 1.0
"""Voice that a new speaker needs: a shorter segment's is too vague to open one."""
_SHORT_SECONDS = 1.6
_LONGEST_RISE = 5.0
_MOST_WEIGHT = 60.0
"""Seconds after which a centroid follows further voice as a moving mean."""


@dataclass(frozen=True)
class Voice:
    """The voice of a segment.

    Attributes:
        seconds: length of the segment.
        embedding: None where the segment is too short, or could not be embedded.
        failed: the embedder failed; the segment has no speaker.
    """

    seconds: float
    embedding: Embedding | None = None
    failed: bool = False


@dataclass
class _Centroid:
    label: str
    mean: Embedding
    weight: float
    is_known: bool

    def add(self, voice: Embedding, seconds: float) -> None:
        """Moves the mean towards a further voice of ``seconds``; a known speaker's stays."""
        if self.is_known:
            return
        mean = self.mean * self.weight + voice * seconds
        self.mean = (mean / np.linalg.norm(mean)).astype(np.float32)
        self.weight = min(self.weight + seconds, _MOST_WEIGHT)


class SpeakerTracker:
    """The speakers of one stream or file. The same voices in the same order have the same labels.

    Args:
        same_voice: cosine from which the voice of a segment of at most 1.6 s is a centroid's.
        most: speakers that are labelled, known ones included; a further voice is the nearest's,
            as is an unknown one that is short.
        known: embeddings of the known speakers by name.
        rise: by how much that cosine rises with each further second, up to 5 s of them.
    """

    def __init__(
        self,
        same_voice: float,
        most: int,
        known: Mapping[str, Embedding] | None = None,
        *,
        rise: float = 0.0,
    ) -> None:
        self._same_voice = same_voice
        self._rise = rise
        self._most = most
        self._centroids = [_Centroid(name, mean, 1.0, True) for name, mean in (known or {}).items()]
        taken = {centroid.label for centroid in self._centroids}
        self._free = [letter for letter in string.ascii_uppercase if letter not in taken]
        self._last = ""

    def labels(self, voices: Sequence[Voice]) -> list[str]:
        """Labels of the next segments, in order; empty where no voice could be told yet."""
        return [self._label(voice) for voice in voices]

    def _label(self, voice: Voice) -> str:
        if voice.failed:
            return ""
        if voice.embedding is not None:
            self._last = self._nearest_or_new(voice.embedding, voice.seconds)
        return self._last

    def _nearest_or_new(self, voice: Embedding, seconds: float) -> str:
        nearest, likeness = None, -1.0
        for centroid in self._centroids:
            cosine = float(centroid.mean @ voice)
            if cosine > likeness:
                nearest, likeness = centroid, cosine
        longer = min(max(0.0, seconds - _SHORT_SECONDS), _LONGEST_RISE)
        if nearest is not None and likeness >= self._same_voice + self._rise * longer:
            nearest.add(voice, seconds)
            return nearest.label
        has_room = len(self._centroids) < self._most
        if nearest is None or (has_room and seconds >= NEW_SECONDS):
            nearest = _Centroid(self._free.pop(0), voice, seconds, False)
            self._centroids.append(nearest)
        return nearest.label
