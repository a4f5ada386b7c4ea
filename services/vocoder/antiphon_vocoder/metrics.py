"""Metrics of speech synthesis, and the player that tells whether a listener would hear a gap."""

from __future__ import annotations

from antiphon_core import metrics

_RTF_BUCKETS = (0.02, 0.05, 0.08, 0.12, 0.16, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 4.0)
_SLACK_BUCKETS = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_START_BUFFER_SECONDS = 0.1
_AUDIBLE_GAP_SECONDS = 0.1


class SpeechMetrics:
    """The service's speech metrics; making it twice gives the same ones."""

    def __init__(self) -> None:
        model = ("model",)
        stage = ("model", "stage")
        self.slots = metrics.gauge("speech_slots", "Speech slots", ("state",))
        self.queued = metrics.gauge("speech_queue_depth", "Streams that wait for a slot")
        self.queue_wait = metrics.histogram(
            "speech_queue_wait_seconds", "Wait for a slot", buckets=metrics.FIRST_BUCKETS
        )
        self.first_audio = metrics.histogram(
            "speech_first_audio_seconds",
            "First audio, from the configuration (config) or from the text that made the first "
            "hop possible (text)",
            ("model", "since"),
            buckets=metrics.FIRST_BUCKETS,
        )
        self.hop_seconds = metrics.histogram(
            "speech_hop_seconds", "Work of one hop", stage, buckets=metrics.STEP_BUCKETS
        )
        self.audio_seconds = metrics.counter("speech_audio_seconds_total", "Audio produced", model)
        self.real_time_factor = metrics.histogram(
            "speech_real_time_factor",
            "Time from first input to last audio a second of audio, by stream",
            model,
            buckets=_RTF_BUCKETS,
        )
        self.slack = metrics.histogram(
            "speech_slack_seconds",
            "Audio ahead of playback when a hop's audio was ready; 0 when it was late",
            model,
            buckets=_SLACK_BUCKETS,
        )
        self.underruns = metrics.counter(
            "speech_underruns_total", "Gaps that a player with a 100 ms buffer would make", model
        )
        self.streams = metrics.counter(
            "speech_streams_total",
            "Streams that ended, by whether one had an audible gap (over 100 ms)",
            ("model", "continuous"),
        )
        self.cancelled_hops = metrics.counter(
            "speech_cancelled_hops_total", "Hops dropped because nobody wants them any more"
        )
        self.clipped_samples = metrics.counter(
            "speech_clipped_samples_total", "Samples limited at 0.99", model
        )
        self.dropped_phonemes = metrics.counter(
            "speech_dropped_phonemes_total", "Phonemes that the voice has no id for", model
        )
        self.worker_restarts = metrics.counter(
            "speech_worker_restarts_total", "Workers started again after they died", ("worker",)
        )
        self.engine_memory = metrics.gauge(
            "speech_engine_resident_bytes", "Resident memory of the speech model process"
        )


class PlayerModel:
    """Replays arrivals through a player that starts after 100 ms and never skips.

    Counts how often it runs dry while speech goes on, and the longest such gap.
    """

    def __init__(self) -> None:
        self._ends_at: float | None = None
        self.underruns = 0
        self.longest_gap = 0.0

    @property
    def continuous(self) -> bool:
        """Whether no gap was long enough to be heard."""
        return self.longest_gap <= _AUDIBLE_GAP_SECONDS

    def arrive(self, now: float, seconds: float, *, after_pause: bool = False) -> None:
        """So much audio arrived now.

        Args:
            after_pause: nothing was left to say before, so that running dry is no fault.
        """
        if self._ends_at is None:
            self._ends_at = now + _START_BUFFER_SECONDS
        elif now > self._ends_at:
            if not after_pause:
                self.underruns += 1
                self.longest_gap = max(self.longest_gap, now - self._ends_at)
            self._ends_at = now
        self._ends_at += seconds
