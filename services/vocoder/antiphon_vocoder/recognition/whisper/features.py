"""Whisper's log-mel features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
FFT = 400
HOP = 160
FRAME_RATE = RATE // HOP
FLOOR_DECADES = 8.0


class LogMel:
    """Slaney mel filters on power spectra of 25 ms Hann windows every 10 ms.

    Args:
        bands: mel bands, 80 or 128.
    """

    def __init__(self, bands: int) -> None:
        self.bands = bands
        self._window = hann_window()
        self._filters = slaney_filters(bands)

    def __call__(self, audio: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
        """Features (bands, frames) of audio (n,) followed by silence, mirrored at both ends.

        Audio past ``frames`` x 160 samples is not heard.
        """
        samples = padded_samples(audio, frames)
        windows = np.lib.stride_tricks.sliding_window_view(samples, FFT)[::HOP][:frames]
        spectrum = np.fft.rfft(windows * self._window, axis=1)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        mel = power.astype(np.float32) @ self._filters
        logarithm = np.log10(np.maximum(mel, 1e-10))
        logarithm = np.maximum(logarithm, logarithm.max() - FLOOR_DECADES)
        return np.ascontiguousarray(((logarithm + 4.0) / 4.0).T, dtype=np.float32)


def hann_window() -> NDArray[np.float32]:
    """Periodic, (FFT,)."""
    return np.hanning(FFT + 1)[:-1].astype(np.float32)


def padded_samples(audio: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """Audio (n,) followed by silence, mirrored at both ends: (frames x HOP + FFT,), of which
    frame i is the FFT samples from i x HOP on."""
    samples = np.zeros(frames * HOP + FFT, np.float32)
    heard = audio[: frames * HOP]
    half = FFT // 2
    samples[half : half + len(heard)] = heard
    mirrored = heard[1 : half + 1][::-1]
    samples[half - len(mirrored) : half] = mirrored
    if len(heard) == frames * HOP:
        samples[half + len(heard) :] = heard[-half - 1 : -1][::-1]
    return samples


def slaney_filters(bands: int) -> NDArray[np.float32]:
    """Triangles (FFT/2 + 1, bands) of unit area, 0 to 8 kHz.

    Slaney's scale is linear to 1 kHz (3 mel per 200 Hz) and logarithmic above (27 mel from 1 to
    6.4 kHz).
    """
    top = 15.0 + 27.0 * np.log(8.0) / np.log(6.4)
    mels = np.linspace(0.0, top, bands + 2)
    linear = mels * 200.0 / 3.0
    logarithmic = 1000.0 * np.exp((mels - 15.0) * np.log(6.4) / 27.0)
    edges = np.where(mels < 15.0, linear, logarithmic)
    bins = np.arange(FFT // 2 + 1) * (RATE / FFT)
    rising = (bins[:, None] - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[None, 2:] - bins[:, None]) / (edges[2:] - edges[1:-1])
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return (triangles * (2.0 / (edges[2:] - edges[:-2]))).astype(np.float32)
