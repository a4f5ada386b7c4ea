"""Residual vector quantisation: nearest codes of a vector, and the vector of codes.

Always fp32 without TF32: a rounded distance changes codes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from antiphon_kernels.nearest_codes import nearest_codes
from torch.nn import functional

from antiphon_vocoder.codec.products import Products


class ResidualQuantizer:
    """Codebooks (size, dim) applied in turn to what the ones before leave over.

    Attributes:
        count: codebooks.
        size: entries of each.
    """

    def __init__(self, codebooks: Sequence[torch.Tensor], products: Products) -> None:
        self.count = len(codebooks)
        self.size, dim = codebooks[0].shape
        self._products = products
        stacked = torch.stack(list(codebooks)).float()
        # A last row of zeros stands for codebooks that a stream does not use.
        self._table = products.put_exact(
            torch.cat([stacked.flatten(0, 1), stacked.new_zeros(1, dim)])
        )
        self._first_rows = torch.arange(self.count, device=products.device) * self.size
        self._books = self._table[:-1].view(self.count, self.size, dim)
        self._norms = products.put_exact(stacked.square().sum(dim=2))

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """codes (B, k, T) int64, k <= count, to sums (B, T, dim) fp32.

        Negative codes add nothing.
        """
        batch, depth, steps = codes.shape
        rows = codes.transpose(1, 2) + self._first_rows[:depth]
        rows = torch.where(codes.transpose(1, 2) < 0, self._table.shape[0] - 1, rows)
        flat = rows.reshape(batch * steps, depth)
        if depth == 1:
            sums = self._table.index_select(0, flat[:, 0])
        else:
            sums = functional.embedding_bag(flat, self._table, mode="sum")
        return sums.view(batch, steps, -1)

    def encode(self, latents: torch.Tensor, depth: int) -> torch.Tensor:
        """latents (B, T, dim) to codes (B, depth, T) int64; equal distances take the lowest."""
        batch, steps, dim = latents.shape
        with self._products.exact():
            codes = nearest_codes(
                latents.float().reshape(batch * steps, dim), self._books, self._norms, depth
            )
        return codes.view(depth, batch, steps).transpose(0, 1)
