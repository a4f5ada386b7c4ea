"""How a voice ends: pitch by autocorrelation, and loudness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
_FRAME = 640
_HOP = 160
_LOWEST_HZ = 60
_HIGHEST_HZ = 400
_SPECTRUM = 2048
_VOICED = 0.45
"""Autocorrelation, over that at lag 0, from which a frame has a pitch."""
_OCTAVE_COST = 0.05
"""Twice a period fits a periodic voice just as well: the shorter of equals is the pitch."""
_QUIET_DB = -35.0
"""Frames so far below the loudest are no voice."""
_HEARD = 3 * RATE
_FINAL_FRAMES = 30
_FEWEST = 5


@dataclass(frozen=True)
class Ending:
    """The last 300 ms of voice against the 3 s before the pause."""

    pitch_slope: float
    """Semitones a second; 0 where too few frames have a pitch."""
    pitch_fall: float
    """Semitones from the median of the utterance to the end; negative is below."""
    loudness_slope: float
    """dB a second."""
    loudness_fall: float
    """dB from the mean of the voiced frames to that of the last 300 ms."""


def ending(audio: NDArray[np.float32]) -> Ending:
    """Measures audio (n,) at 16 kHz, which may end in silence."""
    frames = _frames(audio[-_HEARD:])
    if not len(frames):
        return Ending(0.0, 0.0, 0.0, 0.0)
    loudness = 10 * np.log10(np.mean(np.square(frames), axis=1) + 1e-10)
    voice = np.flatnonzero(loudness > loudness.max() + _QUIET_DB)
    last = int(voice[-1]) + 1
    final = slice(max(0, last - _FINAL_FRAMES), last)
    pitch = _pitch(frames)
    voiced = np.flatnonzero(np.isfinite(pitch[:last]))
    tail = voiced[voiced >= last - 2 * _FINAL_FRAMES][-_FINAL_FRAMES:]
    slope = fall = 0.0
    if len(tail) >= _FEWEST:
        slope = _slope(tail, pitch[tail])
        fall = float(np.median(pitch[tail[-_FEWEST * 2 :]]) - np.median(pitch[voiced]))
    times = np.arange(final.start, final.stop)
    return Ending(
        pitch_slope=slope,
        pitch_fall=fall,
        loudness_slope=_slope(times, loudness[final]) if len(times) >= _FEWEST else 0.0,
        loudness_fall=float(loudness[final].mean() - loudness[voice].mean()),
    )


def _frames(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    if len(audio) < _FRAME:
        return np.zeros((0, _FRAME), np.float32)
    return np.lib.stride_tricks.sliding_window_view(audio, _FRAME)[::_HOP]


def _pitch(frames: NDArray[np.float32]) -> NDArray[np.float64]:
    """Semitones above 1 Hz of frames (n, 640); NaN without a pitch.

    The peak of the autocorrelation, which is divided by the window's own so that long periods
    are not put at a disadvantage (Boersma 1993).
    """
    window = np.hanning(_FRAME)
    centred = (frames - frames.mean(axis=1, keepdims=True)) * window
    lags = slice(RATE // _HIGHEST_HZ, RATE // _LOWEST_HZ)
    own = _autocorrelation(window[None])[0]
    found = _autocorrelation(centred)
    relative = found[:, lags] / (found[:, :1] + 1e-9) * (own[0] / own[lags])
    octaves = np.log2(np.arange(lags.start, lags.stop) / lags.start)
    best = (relative - _OCTAVE_COST * octaves).argmax(axis=1)
    strength = np.take_along_axis(relative, best[:, None], axis=1)[:, 0]
    semitones = 12 * np.log2(RATE / (best + lags.start))
    return np.where(strength > _VOICED, semitones, np.nan)


def _autocorrelation(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    spectrum = np.fft.rfft(rows, _SPECTRUM, axis=1)
    return np.fft.irfft(np.square(np.abs(spectrum)), _SPECTRUM, axis=1)


def _slope(times: NDArray[np.integer], values: NDArray[np.floating]) -> float:
    """Least-squares slope a second of values at frame numbers ``times``."""
    seconds = times * (_HOP / RATE)
    centred = seconds - seconds.mean()
    return float(centred @ (values - values.mean()) / (centred @ centred))
