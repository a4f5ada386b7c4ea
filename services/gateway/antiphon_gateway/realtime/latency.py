"""Latency of spoken turns as histograms: each leg from speech_stopped on."""

from __future__ import annotations

from antiphon_core import metrics

from antiphon_gateway.realtime import inputs

_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)

_legs = metrics.histogram(
    "realtime_turn_seconds",
    "Seconds from speech_stopped to the final transcript, the first text and the first audio",
    ("leg",),
    buckets=_BUCKETS,
)


TIMED = (inputs.SpeechEnded, inputs.Transcript, inputs.TextProduced)
"""The inputs that a clock notes."""


class TurnClock:
    """Times the newest turn of one connection."""

    def __init__(self) -> None:
        self._stopped_at: float | None = None
        self._missing: set[str] = set()

    def note(self, event: inputs.Input, now: float) -> None:
        """Observes what the reducer is about to see."""
        if isinstance(event, inputs.SpeechEnded):
            self._stopped_at = now
            self._missing = {"transcript", "text", "audio"}
        elif isinstance(event, inputs.Transcript):
            self._observe("transcript", now)
        elif isinstance(event, inputs.TextProduced):
            self._observe("text", now)

    def audio_sent(self, _response_id: str, now: float) -> None:
        """Observes audio leaving for the client."""
        self._observe("audio", now)

    def _observe(self, leg: str, now: float) -> None:
        if self._stopped_at is not None and leg in self._missing:
            self._missing.discard(leg)
            _legs.labels(leg).observe(now - self._stopped_at)
