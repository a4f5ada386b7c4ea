"""CTranslate2's encoder over windows shorter than the 30 s it was trained on."""

from __future__ import annotations

import ctranslate2
import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.recognition.whisper.features import LogMel
from antiphon_vocoder.recognition.whisper.window import FRAMES, Window

_STRIDE = 2
"""Feature frames of one encoder position."""


class Encoder:
    """Encodes a window and fills the positions behind it with silence; see Window.

    Args:
        model: the CTranslate2 model.
        window: how much is encoded.
    """

    def __init__(self, model: ctranslate2.models.Whisper, window: Window) -> None:
        self._model = model
        self._window = window
        self._log_mel = LogMel(model.n_mels)
        self._silence = self._encode(np.zeros(0, np.float32), FRAMES)

    def encode(self, audio: NDArray[np.float32]) -> ctranslate2.StorageView:
        """Encoder output (1, 1500, width) float32 of audio (n,), at most 30 s at 16 kHz."""
        frames = self._window.frames(len(audio))
        output = self._encode(audio, frames)
        positions = frames // _STRIDE
        if positions < self._silence.shape[1]:
            output = np.concatenate((output, self._silence[:, positions:]), axis=1)
        return ctranslate2.StorageView.from_array(np.ascontiguousarray(output))

    def _encode(self, audio: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
        features = ctranslate2.StorageView.from_array(self._log_mel(audio, frames)[None])
        return np.array(self._model.encode(features), dtype=np.float32)
