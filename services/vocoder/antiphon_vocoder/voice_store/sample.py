"""Whether a recording is good enough to make a voice of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from antiphon_core.errors import InvalidArgument
from numpy.typing import NDArray

MIN_SECONDS, MAX_SECONDS = 3.0, 30.0
MIN_VOICED_SECONDS = 1.5
MAX_CLIPPED_SHARE = 0.005
MIN_SIGNAL_TO_NOISE_DB = 12.0
_FULL_SCALE = 0.999
_FIELD = "audio"

VoicedWindows = Callable[[NDArray[np.float32]], NDArray[np.bool_]]
"""From mono samples (n,) at 16 kHz to whether each whole window (n // 512,) holds speech."""


@dataclass(frozen=True)
class SampleReport:
    """Measures of an accepted sample."""

    seconds: float
    voiced_seconds: float
    clipped_share: float
    signal_to_noise_db: float
    """Level of the speech over that of the pauses; infinite where pauses are digital silence,
    or there is none."""


def check_sample(
    samples: NDArray[np.float32], rate: int, voiced_windows: VoicedWindows, window: int
) -> SampleReport:
    """Judges a sample.

    Args:
        samples: mono, (n,), in [-1, 1], at ``rate``, which is the detector's.
        window: samples of one detector window.

    Raises:
        InvalidArgument: INVALID_AUDIO, with the measure as ``observed`` and its bound as
            ``limit``: too short or long, too little speech, clipped, noisy.
    """
    seconds = len(samples) / rate
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise _refused(
            f"the sample must be {MIN_SECONDS:g} to {MAX_SECONDS:g} s long",
            f"{MIN_SECONDS:g}..{MAX_SECONDS:g} s",
            f"{seconds:.2f} s",
        )
    clipped = float(np.mean(np.abs(samples) >= _FULL_SCALE))
    if clipped > MAX_CLIPPED_SHARE:
        raise _refused(
            "the sample is clipped; record it with less gain",
            f"{MAX_CLIPPED_SHARE:.1%} of samples at full scale",
            f"{clipped:.1%}",
        )
    voiced = voiced_windows(samples)
    voiced_seconds = float(np.count_nonzero(voiced)) * window / rate
    if voiced_seconds < MIN_VOICED_SECONDS:
        raise _refused(
            f"the sample holds too little speech; {MIN_VOICED_SECONDS:g} s are needed",
            f"{MIN_VOICED_SECONDS:g} s",
            f"{voiced_seconds:.2f} s",
        )
    ratio = _signal_to_noise(samples, voiced, window)
    if ratio < MIN_SIGNAL_TO_NOISE_DB:
        raise _refused(
            "the sample is too noisy; record it in a quieter place",
            f"{MIN_SIGNAL_TO_NOISE_DB:g} dB",
            f"{ratio:.1f} dB",
        )
    return SampleReport(seconds, voiced_seconds, clipped, ratio)


def _signal_to_noise(samples: NDArray[np.float32], voiced: NDArray[np.bool_], window: int) -> float:
    """Power of windows with speech over that of the quieter half of those without, in dB."""
    whole = samples[: len(voiced) * window].reshape(-1, window).astype(np.float64)
    power = np.mean(np.square(whole), axis=1)
    pauses = np.sort(power[~voiced])
    if not len(pauses):
        return float("inf")
    noise = float(np.mean(pauses[: max(len(pauses) // 2, 1)]))
    speech = float(np.mean(power[voiced]))
    return float("inf") if noise == 0.0 else 10.0 * float(np.log10(speech / noise))


def _refused(problem: str, limit: str, observed: str) -> InvalidArgument:
    return InvalidArgument(
        f"{problem} (measured {observed})",
        reason="INVALID_AUDIO",
        field=_FIELD,
        metadata={"limit": limit, "observed": observed},
    )
