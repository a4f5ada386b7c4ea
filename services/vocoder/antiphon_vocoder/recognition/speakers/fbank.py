"""Kaldi's log-mel features, as speaker models are trained on."""

from __future__ import annotations

from typing import Literal

import kaldi_native_fbank
import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.recognition.speakers.embedder import RATE

BANDS = 80
_WHOLE_SCALE = 32768.0


class Fbank:
    """80 log-mel bands of 25 ms windows every 10 ms, whole windows only, without dither.

    Args:
        window: shape of the windows.
        normalized: the model takes samples in -1..1; else they are scaled to 16 bits.
        remove_mean: each band has mean 0 over time.
    """

    def __init__(
        self, *, window: Literal["povey", "hamming"], normalized: bool, remove_mean: bool
    ) -> None:
        options = kaldi_native_fbank.FbankOptions()
        options.frame_opts.samp_freq = RATE
        options.frame_opts.dither = 0.0
        options.frame_opts.snip_edges = True
        options.frame_opts.window_type = window
        options.mel_opts.num_bins = BANDS
        self._options = options
        self._scale = np.float32(1.0 if normalized else _WHOLE_SCALE)
        self._remove_mean = remove_mean

    def __call__(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features (frames, 80) of audio (n,) at 16 kHz in -1..1; none below 25 ms."""
        computer = kaldi_native_fbank.OnlineFbank(self._options)
        computer.accept_waveform(RATE, (audio * self._scale).tolist())
        computer.input_finished()
        frames = [computer.get_frame(index) for index in range(computer.num_frames_ready)]
        if not frames:
            return np.zeros((0, BANDS), np.float32)
        features = np.stack(frames)
        return features - features.mean(axis=0) if self._remove_mean else features
