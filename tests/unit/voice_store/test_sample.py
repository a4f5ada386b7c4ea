"""Which recordings make a voice."""

from __future__ import annotations

import numpy as np
import pytest
from antiphon_core.errors import InvalidArgument
from antiphon_vocoder.recognition.vad import RATE, WINDOW
from antiphon_vocoder.voice_store.sample import check_sample
from numpy.typing import NDArray


def recording(
    *, speech: float = 2.0, pause: float = 2.0, noise: float = 0.001, level: float = 0.2
) -> NDArray[np.float32]:
    """So many seconds of tone, then so many of noise alone."""
    random = np.random.default_rng(1)
    time = np.arange(int((speech + pause) * RATE)) / RATE
    tone = level * np.sin(2 * np.pi * 200 * time) * (time < speech)
    return (tone + noise * random.standard_normal(len(time))).astype(np.float32)


def voiced_until(seconds: float):
    def windows(samples: NDArray[np.float32]) -> NDArray[np.bool_]:
        return np.arange(len(samples) // WINDOW) * WINDOW < seconds * RATE

    return windows


def test_a_clean_recording_is_measured() -> None:
    report = check_sample(recording(), RATE, voiced_until(2.0), WINDOW)
    assert report.seconds == pytest.approx(4.0) and report.voiced_seconds == pytest.approx(2, 0.02)
    assert report.clipped_share == 0 and 40 < report.signal_to_noise_db < 46


@pytest.mark.parametrize(
    ("samples", "voiced", "problem"),
    [
        (recording(speech=1.6, pause=1.3), 1.6, "3 to 30 s long"),
        (recording(speech=20, pause=11), 20, "3 to 30 s long"),
        (recording(), 1.4, "too little speech"),
        (np.clip(recording(level=3), -1, 1), 2.0, "clipped"),
        (recording(noise=0.1), 2.0, "too noisy"),
        (np.zeros(5 * RATE, np.float32), 0.0, "too little speech"),
    ],
)
def test_a_poor_recording_is_refused_with_its_measure(
    samples: NDArray[np.float32], voiced: float, problem: str
) -> None:
    with pytest.raises(InvalidArgument, match=problem) as raised:
        check_sample(samples, RATE, voiced_until(voiced), WINDOW)
    error = raised.value
    assert error.reason == "INVALID_AUDIO" and error.field == "audio"
    assert error.metadata["limit"] and error.metadata["observed"]


def test_speech_without_a_pause_has_no_noise_to_measure() -> None:
    samples = recording(speech=4.0, pause=0.0)
    report = check_sample(samples, RATE, voiced_until(4.0), WINDOW)
    assert report.signal_to_noise_db == float("inf")
