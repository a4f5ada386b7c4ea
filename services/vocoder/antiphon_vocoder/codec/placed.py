"""What all codecs share: weights that lie somewhere."""

from __future__ import annotations

import torch

from antiphon_vocoder.codec.products import Products


class PlacedCodec:
    """Where a codec is and how large.

    Args:
        products: where and how the layers are computed.
    """

    def __init__(self, products: Products) -> None:
        self._products = products

    @property
    def device(self) -> torch.device:
        """Where weights, states and inputs live."""
        return self._products.device

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return self._products.placed_bytes
