"""What the worker counts, and the gauges that the front makes of it."""

from __future__ import annotations

import msgspec

GAUGES = {
    "recognition_streams": "Live recognition streams",
    "recognition_files": "Files being recognised",
    "recognition_worker_restarts": "Restarts of the recogniser process",
    "recognition_queued_passes": "Recogniser passes waiting",
    "recognition_vad_window_seconds": "Detector time of a window, mean of the process",
    "recognition_real_time_factor": "Recogniser time over the audio it heard",
    "recognition_passes": "Recogniser passes of the process",
    "recognition_speculative_hits": "Finals recognised ahead of the end of their turn",
    "recognition_pauses_judged": "Pauses about which the judge of turns was asked",
    "recognition_pauses_refused": "Pauses that the judge took for no end",
    "recognition_pauses_unheard": "Pauses judged without the text that the judge wanted",
    "recognition_turns_forced": "Turns that the longest silence ended",
    "recognition_pause_trial_seconds": "From a pause to the judge's answer, mean of the process",
    "recognition_partials_skipped": "Partial transcripts left out because newer audio was there",
    "recognition_voices_embedded": "Segments whose voice was embedded to tell their speaker",
    "recognition_voice_embedding_seconds": "Time of embedding a voice, mean of the process",
    "recognition_voice_embedding_failures": "Segments left without a speaker by a failed embedding",
    "recognition_keywords_left_out": "Keywords that did not fit the recogniser's prompt",
    "recognition_graph_misses": "Steps of the recogniser that no CUDA graph was recorded for",
    "recognition_worker_resident_bytes": "Memory of the recogniser process",
}
"""Meaning of each gauge."""


class WorkerGauges(msgspec.Struct, frozen=True, tag=True):
    """Sent once a second while work goes on: totals since the start of the process."""

    windows: int
    vad_seconds: float
    passes: int
    pass_seconds: float
    audio_seconds: float
    """Audio that the recogniser heard."""
    speculative_hits: int
    """Finals that were ready when the turn ended."""
    partials_skipped: int
    pauses_judged: int
    pauses_refused: int
    pauses_unheard: int
    """Judged without the text that the judge wanted."""
    turns_forced: int
    """Ended by the longest silence."""
    judge_seconds: float
    voices: int
    """Segments that were embedded."""
    voice_seconds: float
    voice_failures: int
    keywords_left_out: int
    graph_misses: int
    queued: int
    """Passes waiting."""
    resident_bytes: int


def worker_values(seen: WorkerGauges) -> dict[str, float]:
    """Values of the gauges that the worker counts, by name."""
    return {
        "recognition_queued_passes": seen.queued,
        "recognition_vad_window_seconds": _ratio(seen.vad_seconds, seen.windows),
        "recognition_real_time_factor": _ratio(seen.pass_seconds, seen.audio_seconds),
        "recognition_passes": seen.passes,
        "recognition_speculative_hits": seen.speculative_hits,
        "recognition_pauses_judged": seen.pauses_judged,
        "recognition_pauses_refused": seen.pauses_refused,
        "recognition_pauses_unheard": seen.pauses_unheard,
        "recognition_turns_forced": seen.turns_forced,
        "recognition_pause_trial_seconds": _ratio(seen.judge_seconds, seen.pauses_judged),
        "recognition_partials_skipped": seen.partials_skipped,
        "recognition_voices_embedded": seen.voices,
        "recognition_voice_embedding_seconds": _ratio(seen.voice_seconds, seen.voices),
        "recognition_voice_embedding_failures": seen.voice_failures,
        "recognition_keywords_left_out": seen.keywords_left_out,
        "recognition_graph_misses": seen.graph_misses,
        "recognition_worker_resident_bytes": seen.resident_bytes,
    }


def _ratio(total: float, parts: float) -> float:
    return total / parts if parts else 0.0
