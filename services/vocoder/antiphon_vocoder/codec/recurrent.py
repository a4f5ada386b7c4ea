"""EnCodec's recurrent layers, whose state is a part of the carry."""

from __future__ import annotations

import torch
from torch import nn

from antiphon_vocoder.codec.carry import Carry, CarryLayout
from antiphon_vocoder.codec.products import Products
from antiphon_vocoder.codec.weights import CodecWeights


def read_lstm(
    weights: CodecWeights, name: str, channels: int, depth: int, products: Products
) -> nn.LSTM:
    """The recurrent layers of a name, as wide as their input, over (B, T, channels)."""
    lstm = nn.LSTM(channels, channels, depth, batch_first=True)
    for key, parameter in lstm.named_parameters():
        read = weights.tensor(f"{name}.{key}", tuple(parameter.shape))
        parameter.data = products.put(read)
        parameter.requires_grad_(False)
    lstm.to(products.device, products.dtype)
    lstm.flatten_parameters()
    return lstm


class ResidualLstm:
    """x + lstm(x) over all its layers; hidden and cell state are kept for each slot."""

    def __init__(
        self,
        weights: CodecWeights,
        name: str,
        channels: int,
        depth: int,
        products: Products,
        layout: CarryLayout,
    ) -> None:
        self._lstm = read_lstm(weights, name, channels, depth, products)
        self._depth = depth
        self._place = layout.place(2 * depth, channels)

    def __call__(self, x: torch.Tensor, carry: Carry) -> torch.Tensor:
        """x (B, T, channels) to the same shape."""
        state = carry.old(self._place).transpose(0, 1)
        hidden, cell = state[: self._depth].contiguous(), state[self._depth :].contiguous()
        out, (hidden, cell) = self._lstm(x, (hidden, cell))
        carry.keep(self._place, torch.cat([hidden, cell]).transpose(0, 1).contiguous())
        return x + out
