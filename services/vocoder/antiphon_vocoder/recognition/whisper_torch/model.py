"""A whisper checkpoint in memory: encoder, decoder and their caches."""

from __future__ import annotations

from pathlib import Path

import torch
from antiphon_nn.device import with_index

from antiphon_vocoder.recognition.whisper_torch.decoder import Decoder
from antiphon_vocoder.recognition.whisper_torch.encoder import Encoder
from antiphon_vocoder.recognition.whisper_torch.memory import Memory
from antiphon_vocoder.recognition.whisper_torch.recordings import RecordedSteps, RecordedWindow
from antiphon_vocoder.recognition.whisper_torch.rules import LogitRules
from antiphon_vocoder.recognition.whisper_torch.weights import Storage, WhisperWeights, read_shape

_TIED_HEAD = r"proj_out\.weight"
"""Some writers repeat the token embeddings under this name."""


class WhisperModel:
    """Weights on their device, and room for texts and audio.

    Args:
        directory: the checkpoint.
        device: cpu, cuda or cuda:N.
        storage: how weights are kept.
        threads: that share an attention of the encoder on a processor.
        rows: texts that are decoded at once.
        places: excerpts that are encoded at once.

    Raises:
        CheckpointError: a tensor is missing, has another shape, or has no place in the model.
        UnsupportedConfig: a value of config.json that is not served.
        ValueError: there is no such device.
    """

    def __init__(
        self,
        directory: Path,
        *,
        device: str,
        storage: Storage,
        threads: int,
        rows: int,
        places: int,
    ) -> None:
        self.device = where = with_index(torch.device(device))
        self.bind_thread()
        weights = WhisperWeights(directory, where, storage)
        self.shape = read_shape(weights)
        self.memory = Memory(
            self.shape, rows=rows, places=places, device=where, dtype=weights.computed
        )
        self.encoder = Encoder(weights, self.shape, threads)
        self.decoder = Decoder(weights, self.shape, self.memory)
        weights.finish(ignored=[_TIED_HEAD])
        self._recorded_window = None
        if where.type == "cuda":
            with torch.inference_mode():
                self._recorded_window = RecordedWindow(self.encoder, self.shape, where)

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """features (bands, frames) to (frames / 2, width), which the next call may overwrite."""
        recorded = self._recorded_window
        if recorded is not None and recorded.fits(features):
            return recorded(features)
        return self.encoder(features)

    def record_steps(self, rules: LogitRules, *, tokens: int, top: int) -> RecordedSteps | None:
        """Steps of the decoder as graphs; None on a processor, which has no use for them."""
        if self.device.type == "cpu":
            return None
        with torch.inference_mode():
            return RecordedSteps(
                self.decoder,
                self.memory,
                rules,
                self.shape,
                tokens=tokens,
                top=top,
                device=self.device,
            )

    def bind_thread(self) -> None:
        """Kernels are launched on the current device, which every thread sets for itself."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
