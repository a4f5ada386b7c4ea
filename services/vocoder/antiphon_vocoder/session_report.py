"""Times of one stream and what they add to the metrics."""

from __future__ import annotations

from antiphon_vocoder.metrics import PlayerModel, SpeechMetrics


class StreamReport:
    """Collects when things happened; all times are of one monotonic clock, in seconds."""

    def __init__(
        self, model: str, metrics: SpeechMetrics, accepted_at: float, *, input_kind: str
    ) -> None:
        """``input_kind`` is text or codes: what first audio is also timed from."""
        self.accepted_at = accepted_at
        self._model = model
        self._input_kind = input_kind
        self._metrics = metrics
        self._player = PlayerModel()
        self._first_input: float | None = None
        self._first_speakable: float | None = None
        self._first_audio: float | None = None
        self._last_audio: float | None = None
        self._was_silent = False

    def input(self, now: float) -> None:
        """Input arrived."""
        if self._first_input is None:
            self._first_input = now

    def speakable(self, now: float) -> None:
        """A segment can be spoken from now on."""
        if self._first_speakable is None:
            self._first_speakable = now

    def silent(self) -> None:
        """Nothing is left to say for now."""
        self._was_silent = True

    def audio(self, now: float, seconds: float) -> None:
        """So much audio left for the client."""
        if self._first_audio is None:
            self._first_audio = now
            histogram = self._metrics.first_audio
            histogram.labels(self._model, "config").observe(now - self.accepted_at)
            if self._first_speakable is not None:
                since = now - self._first_speakable
                histogram.labels(self._model, self._input_kind).observe(since)
        self._last_audio = now
        self._player.arrive(now, seconds, after_pause=self._was_silent)
        self._was_silent = False
        self._metrics.audio_seconds.labels(self._model).inc(seconds)

    def dropped_phonemes(self, count: int) -> None:
        """So many phonemes had no id."""
        self._metrics.dropped_phonemes.labels(self._model).inc(count)

    def finish(self, audio_seconds: float) -> tuple[float | None, float]:
        """Observes the whole stream; returns (time to first audio, duration)."""
        if self._first_audio is None or self._last_audio is None:
            return None, 0.0
        started = self._first_input if self._first_input is not None else self.accepted_at
        duration = self._last_audio - started
        metrics = self._metrics
        if audio_seconds > 0:
            metrics.real_time_factor.labels(self._model).observe(duration / audio_seconds)
        metrics.least_slack.labels(self._model).observe(max(0.0, self._player.least_slack))
        metrics.underruns.labels(self._model).inc(self._player.underruns)
        metrics.streams.labels(self._model, str(self._player.continuous).lower()).inc()
        return self._first_audio - self.accepted_at, duration
