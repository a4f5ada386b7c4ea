"""Reading a whisper checkpoint, every tensor by name and shape, onto the device that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from antiphon_kernels.quant_linear import pack
from antiphon_nn.layers import DenseEmbedding, DenseLinear, Embedding, Linear, Projection
from torch.nn import functional

from antiphon_vocoder.codec.weights import CodecWeights

Storage = Literal["auto", "fp32", "fp16", "bf16"]
"""How weights are kept; auto is the file's dtype on a processor and fp16 on CUDA."""

EPSILON = 1e-5
"""Of every layer norm."""

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_FILE_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_EMBEDDING = "model.decoder.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class WhisperShape:
    """Sizes, from config.json."""

    mel_bands: int
    width: int
    vocabulary: int
    encoder_layers: int
    encoder_heads: int
    encoder_inner: int
    decoder_layers: int
    decoder_heads: int
    decoder_inner: int
    source_positions: int
    target_positions: int
    embedding_scale: float
    median_width: int
    """Of the filter over attention weights that places words."""


@dataclass(frozen=True, slots=True)
class Norm:
    """Layer normalisation with an affine, over the last axis."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (N, width) normalised."""
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, EPSILON)


class WhisperWeights(CodecWeights):
    """An open checkpoint and where its weights go.

    Products of a processor run over packed weights: row i of a product has the same bits for
    every number of rows, so an excerpt decodes alike alone and in a batch.

    Args:
        directory: config.json and safetensors as transformers writes them.
        device: where the model runs.
        storage: how weights are kept.

    Raises:
        CheckpointError: the checkpoint is damaged or incomplete.
    """

    def __init__(self, directory: Path, device: torch.device, storage: Storage) -> None:
        super().__init__(directory)
        self.device = device
        if storage != "auto":
            self.stored = _DTYPES[storage]
        elif device.type == "cuda":
            self.stored = torch.float16
        else:
            self.shape(_EMBEDDING)
            self.stored = _FILE_DTYPES[self._checkpoint.linear(_EMBEDDING).kind]

    @property
    def computed(self) -> torch.dtype:
        """Dtype of activations and caches."""
        return self.stored if self.device.type == "cuda" else torch.float32

    def vector(self, name: str, size: int) -> torch.Tensor:
        """A tensor (size) in the dtype of activations."""
        return self.tensor(name, (size,)).to(self.device, self.computed)

    def table(self, name: str, rows: int, width: int) -> torch.Tensor:
        """A tensor (rows, width) in the dtype of activations."""
        return self.tensor(name, (rows, width)).to(self.device, self.computed)

    def norm(self, name: str, width: int) -> Norm:
        """The layer norm ``name``."""
        return Norm(self.vector(f"{name}.weight", width), self.vector(f"{name}.bias", width))

    def product(
        self, outputs: int, inputs: int, *names: str, unbiased: Sequence[str] = ()
    ) -> Projection:
        """Projections of one input side by side, each (outputs, inputs) with its bias.

        Args:
            outputs: of each.
            inputs: of all.
            names: modules.
            unbiased: those among them that have no bias.
        """
        parts = [self.tensor(f"{name}.weight", (outputs, inputs)) for name in names]
        biases = [
            torch.zeros(outputs) if name in unbiased else self.tensor(f"{name}.bias", (outputs,))
            for name in names
        ]
        return self._placed(torch.cat(parts), torch.cat(biases))

    def convolution(self, name: str, outputs: int, inputs: int, taps: int) -> Projection:
        """A convolution as a product over its unfolded input, channel by channel."""
        weight = self.tensor(f"{name}.weight", (outputs, inputs, taps)).flatten(1)
        return self._placed(weight, self.tensor(f"{name}.bias", (outputs,)))

    def embedding(
        self, vocabulary: int, width: int, scale: float
    ) -> tuple[Embedding | DenseEmbedding, Projection]:
        """Token embeddings, and the output projection over the same storage."""
        matrix = self.tensor(_EMBEDDING, (vocabulary, width)).to(self.stored)
        if self.device.type == "cpu":
            embedding = Embedding(pack(matrix), scale)
        else:
            embedding = DenseEmbedding(matrix.to(self.device), scale)
        return embedding, embedding.head()

    def _placed(self, weight: torch.Tensor, bias: torch.Tensor) -> Projection:
        weight = weight.to(self.stored)
        if self.device.type == "cpu":
            return Linear([pack(weight)], [bias])
        weight, bias = weight.to(self.device), bias.to(self.device, self.stored)
        return DenseLinear(weight, [weight.shape[0]], bias)


def read_shape(weights: WhisperWeights) -> WhisperShape:
    """What config.json describes; values that are not served are refused.

    Raises:
        UnsupportedConfig: such a value, or one that is missing.
    """
    config = weights.config
    config.choice("activation_function", ("gelu",), "gelu")
    config.choice("tie_word_embeddings", (True,), True)
    config.choice("use_weighted_layer_sum", (False,), False)
    width = config.integer("d_model")
    scaled = config.flag("scale_embedding", False)
    weights.leave(*_TRAINING, *_OF_GENERATION)
    return WhisperShape(
        mel_bands=config.choice("num_mel_bins", (80, 128), 80),
        width=width,
        vocabulary=config.integer("vocab_size"),
        encoder_layers=config.integer("encoder_layers"),
        encoder_heads=config.integer("encoder_attention_heads"),
        encoder_inner=config.integer("encoder_ffn_dim"),
        decoder_layers=config.integer("decoder_layers"),
        decoder_heads=config.integer("decoder_attention_heads"),
        decoder_inner=config.integer("decoder_ffn_dim"),
        source_positions=config.choice("max_source_positions", (1500,), 1500),
        target_positions=config.integer("max_target_positions", 448),
        embedding_scale=width**0.5 if scaled else 1.0,
        median_width=config.integer("median_filter_width", 7),
    )


_TRAINING = (
    "dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop", "init_std",
    "apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks",
    "mask_feature_prob", "mask_feature_length", "mask_feature_min_masks", "classifier_proj_size",
    "num_hidden_layers",
)  # fmt: skip
"""Keys that do not change what a recogniser computes."""

_OF_GENERATION = (
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "suppress_tokens",
    "begin_suppress_tokens", "forced_decoder_ids", "max_length",
)  # fmt: skip
"""Keys that generation_config.json and the tokenizer say again."""
