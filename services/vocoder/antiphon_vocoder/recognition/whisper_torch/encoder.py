"""Whisper's encoder: log-mel features to positions of 20 ms."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn import functional

from antiphon_vocoder.recognition.whisper_torch.weights import WhisperShape, WhisperWeights

TAPS = 3
"""Of both convolutions, which have one frame of padding at each end."""


class Encoder:
    """Encodes one window at a time: it has enough positions to fill a device.

    Args:
        weights: the checkpoint.
        shape: its sizes.
        threads: that share the heads of an attention on a processor.
    """

    def __init__(self, weights: WhisperWeights, shape: WhisperShape, threads: int) -> None:
        width = shape.width
        self._device, self._dtype = weights.device, weights.computed
        self._first = weights.convolution("model.encoder.conv1", width, shape.mel_bands, TAPS)
        self._second = weights.convolution("model.encoder.conv2", width, width, TAPS)
        positions = "model.encoder.embed_positions.weight"
        self._positions = weights.table(positions, shape.source_positions, width)
        pool = ThreadPoolExecutor(threads) if threads > 1 and self._device.type == "cpu" else None
        self._layers = [
            _Layer(weights, shape, f"model.encoder.layers.{layer}", pool, threads)
            for layer in range(shape.encoder_layers)
        ]
        self._norm = weights.norm("model.encoder.layer_norm", width)

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """features (bands, frames) to (frames / 2, width), normalised."""
        x = features.to(self._device, self._dtype)
        x = functional.gelu(self._first(_unfolded(x, stride=1)))
        x = functional.gelu(self._second(_unfolded(x.t(), stride=2)))
        x = x + self._positions[: len(x)]
        for layer in self._layers:
            x = layer(x)
        return self._norm(x)


class _Layer:
    """Attention and feed-forward, each over a norm and added to its input."""

    def __init__(
        self,
        weights: WhisperWeights,
        shape: WhisperShape,
        name: str,
        pool: ThreadPoolExecutor | None,
        threads: int,
    ) -> None:
        width, inner = shape.width, shape.encoder_inner
        self._heads = shape.encoder_heads
        self._pool, self._threads = pool, threads
        projections = [f"{name}.self_attn.{part}_proj" for part in "qkv"]
        self._attention_norm = weights.norm(f"{name}.self_attn_layer_norm", width)
        self._qkv = weights.product(width, width, *projections, unbiased=projections[1:2])
        self._out = weights.product(width, width, f"{name}.self_attn.out_proj")
        self._inner_norm = weights.norm(f"{name}.final_layer_norm", width)
        self._up = weights.product(inner, width, f"{name}.fc1")
        self._down = weights.product(width, inner, f"{name}.fc2")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (positions, width) to the same shape."""
        qkv = self._qkv(self._attention_norm(x)).view(len(x), 3, self._heads, -1)
        x = x + self._out(self._attend(qkv.permute(1, 2, 0, 3)))
        return x + self._down(functional.gelu(self._up(self._inner_norm(x))))

    def _attend(self, qkv: torch.Tensor) -> torch.Tensor:
        """qkv (3, heads, positions, head width) to (positions, width)."""

        def some(part: torch.Tensor) -> torch.Tensor:
            q, k, v = part[:, None]
            return functional.scaled_dot_product_attention(q, k, v)[0]

        if self._pool is None:
            attended = some(qkv)
        else:
            # The kernels of products own the cores, and torch has one thread for each call.
            parts = qkv.tensor_split(self._threads, dim=1)
            attended = torch.cat(list(self._pool.map(some, parts)))
        return attended.transpose(0, 1).flatten(1)


def _unfolded(x: torch.Tensor, stride: int) -> torch.Tensor:
    """x (channels, frames) to (frames / stride, channels * TAPS)."""
    windows = functional.pad(x, (1, 1)).unfold(1, TAPS, stride)
    return windows.permute(1, 0, 2).flatten(1)
