"""A whisper checkpoint in memory: encoder, decoder and their caches."""

from __future__ import annotations

from pathlib import Path

import torch

from antiphon_vocoder.recognition.whisper_torch.decoder import Decoder
from antiphon_vocoder.recognition.whisper_torch.encoder import Encoder
from antiphon_vocoder.recognition.whisper_torch.memory import Memory
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
        self.device = where = torch.device(device)
        weights = WhisperWeights(directory, where, storage)
        self.shape = read_shape(weights)
        self.memory = Memory(
            self.shape, rows=rows, places=places, device=where, dtype=weights.computed
        )
        self.encoder = Encoder(weights, self.shape, threads)
        self.decoder = Decoder(weights, self.shape, self.memory)
        weights.finish(ignored=[_TIED_HEAD])
