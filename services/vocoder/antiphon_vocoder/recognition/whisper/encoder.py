"""Whisper's encoder over windows shorter than the 30 s it was trained on."""

from __future__ import annotations

import math

import ctranslate2
import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.recognition.whisper.features import FRAME_RATE, RATE, LogMel

WINDOW_SECONDS = 30
_STRIDE = 2
"""Feature frames of one encoder position."""


class Encoder:
    """Encodes speech and a margin of silence behind it, not the whole 30 s window.

    Whisper pads every input to 30 s of silence, and its decoder relies on that silence to stop:
    a short window alone makes it repeat the text. So the positions behind the short window are
    taken from an encoding of pure silence, made once. The encoder's cost then follows the length
    of the speech while the decoder sees the 1500 positions that it expects.

    Args:
        model: the CTranslate2 model.
        margin_seconds: silence that is encoded with the speech.
        shortest_seconds: the shortest encoded window.
    """

    def __init__(
        self, model: ctranslate2.models.Whisper, *, margin_seconds: float, shortest_seconds: float
    ) -> None:
        self._model = model
        self._margin_seconds = margin_seconds
        self._shortest_seconds = shortest_seconds
        self._log_mel = LogMel(model.n_mels)
        self._silence = self._encode(np.zeros(0, np.float32), WINDOW_SECONDS * FRAME_RATE)

    def encode(self, audio: NDArray[np.float32]) -> ctranslate2.StorageView:
        """Encoder output (1, 1500, width) float32 of audio (n,), at most 30 s at 16 kHz."""
        frames = self.window_frames(len(audio))
        output = self._encode(audio, frames)
        positions = frames // _STRIDE
        if positions < self._silence.shape[1]:
            output = np.concatenate((output, self._silence[:, positions:]), axis=1)
        return ctranslate2.StorageView.from_array(np.ascontiguousarray(output))

    def window_frames(self, samples: int) -> int:
        """Feature frames that are encoded for so many samples: a multiple of half a second."""
        wanted = max(samples / RATE + self._margin_seconds, self._shortest_seconds)
        half_seconds = min(math.ceil(wanted * 2), 2 * WINDOW_SECONDS)
        return half_seconds * FRAME_RATE // 2

    def _encode(self, audio: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
        features = ctranslate2.StorageView.from_array(self._log_mel(audio, frames)[None])
        return np.array(self._model.encode(features), dtype=np.float32)
