"""Log-mel features on the device that encodes them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_vocoder.recognition.whisper.features import (
    FFT,
    FLOOR_DECADES,
    HOP,
    hann_window,
    padded_samples,
    slaney_filters,
)


class DeviceLogMel:
    """As ``LogMel``, to 1e-4.

    Args:
        bands: mel bands, 80 or 128.
        device: where the features are made.
    """

    def __init__(self, bands: int, device: torch.device) -> None:
        self._device = device
        self._window = torch.from_numpy(hann_window()).to(device)
        self._filters = torch.from_numpy(slaney_filters(bands)).to(device)

    def __call__(self, audio: NDArray[np.float32], frames: int) -> torch.Tensor:
        """Features (bands, frames) fp32 of audio (n,) at 16 kHz followed by silence."""
        samples = torch.from_numpy(padded_samples(audio, frames)).to(self._device)
        windows = samples.unfold(0, FFT, HOP)[:frames] * self._window
        power = torch.fft.rfft(windows, dim=1).abs().square()
        logarithm = (power @ self._filters).clamp(min=1e-10).log10()
        logarithm = torch.maximum(logarithm, logarithm.amax() - FLOOR_DECADES)
        return ((logarithm + 4.0) / 4.0).t().contiguous()
