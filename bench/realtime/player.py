"""A model of a listener's player: when it becomes audible, and where it runs dry."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from antiphon_cli.talk.audio import REALTIME_RATE, Samples

START_BUFFER_S = 0.1
"""Audio that the player gathers before it starts, at first and after each gap."""
AUDIBLE = 0.01
"""Amplitude from which on a sample is heard."""


@dataclass
class Player:
    """Plays 24 kHz audio as it arrives; times are of one monotonic clock, in seconds."""

    started_at: float | None = None
    """When the first sample sounded."""
    audible_at: float | None = None
    """When the first sample above AUDIBLE sounded."""
    gaps: list[float] = field(default_factory=list)
    """Silences that the listener did not ask for."""
    seconds: float = 0.0
    """Audio that has arrived."""
    _dry_at: float | None = None
    """When what was gathered runs out; None while gathering."""
    _gathered: float = 0.0
    _silent: float = 0.0
    _heard: bool = False
    _gap_from: float | None = None

    def push(self, samples: Samples, now: float) -> None:
        """Audio arrives."""
        self._note_audible(samples)
        length = len(samples) / REALTIME_RATE
        self.seconds += length
        if self._dry_at is not None and now > self._dry_at:
            self._gap_from, self._dry_at = self._dry_at, None
        if self._dry_at is not None:
            self._dry_at += length
            return
        self._gathered += length
        if self._gathered >= START_BUFFER_S:
            self._start(now)

    def end(self, now: float) -> None:
        """Nothing follows: what was gathered plays at once."""
        if self._dry_at is None and self._gathered > 0:
            self._start(now)

    def ends_at(self) -> float | None:
        """When the last sample sounds, as far as is known; None before the first."""
        return self._dry_at

    def _start(self, now: float) -> None:
        if self._gap_from is not None:
            self.gaps.append(now - self._gap_from)
            self._gap_from = None
        if self.started_at is None:
            self.started_at = now
        if self.audible_at is None and self._heard:
            self.audible_at = now + self._silent
        self._dry_at = now + self._gathered
        self._gathered = 0.0

    def _note_audible(self, samples: Samples) -> None:
        if self._heard:
            return
        loud = np.flatnonzero(np.abs(samples) > AUDIBLE)
        self._heard = loud.size > 0
        quiet = int(loud[0]) if self._heard else len(samples)
        self._silent += quiet / REALTIME_RATE
        if self._heard and self.started_at is not None:
            self.audible_at = self.started_at + self._silent
