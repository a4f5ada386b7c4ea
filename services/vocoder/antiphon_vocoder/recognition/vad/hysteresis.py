"""From window probabilities to the start and the end of speech."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from antiphon_vocoder.recognition.vad.detector import RATE, WINDOW

START_WINDOWS = 3
RELEASE_MARGIN = 0.15
_LOWEST_RELEASE = 0.01
"""Keeps speech that started at a very low threshold able to stop."""


class Edge(Enum):
    """What a window brought about."""

    NONE = auto()
    STARTED = auto()
    STOPPED = auto()


@dataclass
class Hysteresis:
    """Speech starts after three windows in a row above ``threshold`` and stops after
    ``silence_ms`` without a window at or above ``threshold`` - 0.15.

    Positions are sample indices of the stream at 16 kHz.
    """

    threshold: float
    silence_ms: int
    speaking: bool = False
    voice_start: int = 0
    """First sample of the windows that started the present speech."""
    voice_end: int = 0
    """End of the last window at or above the release threshold while speaking."""
    _run: int = 0

    def feed(self, probability: float, window_end: int) -> Edge:
        """Takes the next window, which ends before sample ``window_end``."""
        above = probability > self.threshold
        self._run = self._run + 1 if above else 0
        if not self.speaking:
            if self._run < START_WINDOWS:
                return Edge.NONE
            self.speaking = True
            self.voice_start = window_end - START_WINDOWS * WINDOW
            self.voice_end = window_end
            return Edge.STARTED
        if probability >= max(self.threshold - RELEASE_MARGIN, _LOWEST_RELEASE):
            self.voice_end = window_end
            return Edge.NONE
        if self.silence(window_end) * 1000 < self.silence_ms * RATE:
            return Edge.NONE
        self.speaking = False
        self._run = 0
        return Edge.STOPPED

    def silence(self, position: int) -> int:
        """Samples since the last voice."""
        return position - self.voice_end

    def interrupt(self) -> None:
        """Forgets speech that goes on: it has to start anew."""
        self.speaking = False
        self._run = 0
