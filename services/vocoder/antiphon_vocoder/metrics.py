"""Metrics of speech synthesis, and the player that tells whether a listener would hear a gap."""

from __future__ import annotations

from antiphon_core import metrics

_RTF_BUCKETS = (0.02, 0.05, 0.08, 0.12, 0.16, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 4.0)
_SLACK_BUCKETS = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_LEAST_SLACK_BUCKETS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_START_BUFFER_SECONDS = 0.1
_AUDIBLE_GAP_SECONDS = 0.1


class SpeechMetrics:
    """The service's speech metrics; making it twice gives the same ones."""

    def __init__(self) -> None:
        model = ("model",)
        self._declare_slots(model)
        self._declare_times(model)
        self._declare_listening(model)
        self._declare_work(model)

    def _declare_slots(self, model: tuple[str]) -> None:
        self.slots = metrics.gauge(
            "speech_slots", "Slots; those of all codecs under the model codec", ("model", "state")
        )
        self.slot_utilization = metrics.gauge(
            "speech_slot_utilization", "Busy and waited-for slots over all slots, at most 1", model
        )
        self.queued = metrics.gauge("speech_queue_depth", "Streams that wait for a slot", model)
        self.queue_wait = metrics.histogram(
            "speech_queue_wait_seconds", "Wait for a slot", model, buckets=metrics.FIRST_BUCKETS
        )
        self.refused = metrics.counter(
            "speech_refused_total", "Streams refused because the queue was full", model
        )

    def _declare_times(self, model: tuple[str]) -> None:
        stage = (*model, "stage")
        self.first_audio = metrics.histogram(
            "speech_first_audio_seconds",
            "First audio, from the configuration (config) or from the text or codes that made the "
            "first hop possible (text, codes)",
            ("model", "since"),
            buckets=metrics.FIRST_BUCKETS,
        )
        self.hop_seconds = metrics.histogram(
            "speech_hop_seconds",
            "Work of one hop, or of one step over several streams",
            stage,
            buckets=metrics.STEP_BUCKETS,
        )
        self.step_rows = metrics.histogram(
            "speech_step_rows", "Streams in one step", stage, buckets=_ROW_BUCKETS
        )
        self.audio_seconds = metrics.counter("speech_audio_seconds_total", "Audio produced", model)
        self.real_time_factor = metrics.histogram(
            "speech_real_time_factor",
            "Time from first input to last audio a second of audio, by stream",
            model,
            buckets=_RTF_BUCKETS,
        )

    def _declare_listening(self, model: tuple[str]) -> None:
        self.slack = metrics.histogram(
            "speech_slack_seconds",
            "Audio ahead of playback when a hop's audio was ready; 0 when it was late",
            model,
            buckets=_SLACK_BUCKETS,
        )
        self.least_slack = metrics.histogram(
            "speech_least_slack_seconds",
            "Least time by which audio came before a player with a 100 ms buffer ran dry, by "
            "stream; 0 for a gap",
            model,
            buckets=_LEAST_SLACK_BUCKETS,
        )
        self.underruns = metrics.counter(
            "speech_underruns_total", "Gaps that a player with a 100 ms buffer would make", model
        )
        self.streams = metrics.counter(
            "speech_streams_total",
            "Streams that ended, by whether one had an audible gap (over 100 ms)",
            ("model", "continuous"),
        )

    def _declare_work(self, model: tuple[str]) -> None:
        self.cancelled_hops = metrics.counter(
            "speech_cancelled_hops_total", "Hops dropped because nobody wants them any more", model
        )
        self.slot_resets = metrics.counter(
            "speech_slot_resets_total", "Slots zeroed for a new stream", model
        )
        self.graph_misses = metrics.counter(
            "speech_graph_miss_total", "Steps of a shape that was not recorded at boot", model
        )
        self.retried_steps = metrics.counter(
            "speech_retried_steps_total", "Steps that failed and were run again row by row", model
        )
        self.failed_hops = metrics.counter(
            "speech_failed_hops_total", "Hops that failed and ended their stream", model
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
            "speech_engine_resident_bytes", "Resident memory of a model process", ("worker",)
        )
        self.device_memory = metrics.gauge(
            "speech_engine_device_bytes", "Device memory of a model process", ("worker",)
        )


class PlayerModel:
    """Replays arrivals through a player that starts after 100 ms and never skips.

    Counts how often it runs dry while speech goes on, and the longest such gap.
    """

    def __init__(self) -> None:
        self._ends_at: float | None = None
        self.underruns = 0
        self.longest_gap = 0.0
        self.least_slack = _START_BUFFER_SECONDS
        """Seconds between an arrival and the moment of running dry, the smallest so far."""

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
        elif not after_pause:
            self.least_slack = min(self.least_slack, self._ends_at - now)
        if now > self._ends_at:
            if not after_pause:
                self.underruns += 1
                self.longest_gap = max(self.longest_gap, now - self._ends_at)
            self._ends_at = now
        self._ends_at += seconds
