"""Residual quantisation by the angle of small projections (Kumar et al. 2023, DAC).

Always fp32 without TF32: a rounded angle changes codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from antiphon_vocoder.codec.products import Products


@dataclass(frozen=True, slots=True)
class CosineCodebook:
    """One codebook and its projections.

    Attributes:
        entries: (size, dim).
        down: (dim, width) and down_bias (dim,), before the lookup.
        up: (width, dim) and up_bias (width,), after it.
    """

    entries: torch.Tensor
    down: torch.Tensor
    down_bias: torch.Tensor
    up: torch.Tensor
    up_bias: torch.Tensor


class CosineQuantizer:
    """Codebooks applied in turn to what the ones before leave over.

    A code is the entry at the smallest angle to the projection; what it stands for is the entry
    as it is, not normalised.

    Attributes:
        count: codebooks.
        size: entries of each.
    """

    def __init__(self, books: Sequence[CosineCodebook], products: Products) -> None:
        self.count = len(books)
        self.size, dim = books[0].entries.shape
        self._products = products
        # An entry is kept with a one that meets the bias; the last row, of a codebook that a
        # stream does not use, has neither.
        entries = torch.cat([book.entries for book in books])
        table = torch.cat([entries, entries.new_ones(len(entries), 1)], dim=1)
        self._table = products.put_exact(torch.cat([table, table.new_zeros(1, dim + 1)]))
        self._first_rows = torch.arange(self.count, device=products.device) * self.size
        self._up = products.put_exact(
            torch.stack([torch.cat([book.up, book.up_bias[:, None]], dim=1).t() for book in books])
        )
        self._down = products.put_exact(torch.stack([book.down.t() for book in books]))
        self._down_bias = products.put_exact(torch.stack([book.down_bias for book in books]))
        self._directions = products.put_exact(
            torch.stack([functional.normalize(book.entries).t() for book in books])
        )

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """codes (B, k, T) int64, k <= count, to sums (B, T, width) fp32.

        Negative codes add nothing.
        """
        batch, depth, steps = codes.shape
        codes = codes.transpose(1, 2)
        rows = codes + self._first_rows[:depth]
        rows = torch.where(codes < 0, self._table.shape[0] - 1, rows)
        entries = self._table.index_select(0, rows.flatten()).view(batch * steps, -1)
        with self._products.exact():
            sums = entries @ self._up[:depth].flatten(0, 1)
        return sums.view(batch, steps, -1)

    def encode(self, latents: torch.Tensor, depth: int) -> torch.Tensor:
        """latents (B, T, width) to codes (B, depth, T) int64; equal angles take the lowest."""
        batch, steps, width = latents.shape
        residual = latents.float().reshape(batch * steps, width)
        codes = []
        with self._products.exact():
            for level in range(depth):
                projected = torch.addmm(self._down_bias[level], residual, self._down[level])
                cosines = functional.normalize(projected) @ self._directions[level]
                nearest = cosines.argmax(dim=1)
                codes.append(nearest)
                if level + 1 < depth:
                    entries = self._table[level * self.size :].index_select(0, nearest)
                    residual = residual - entries @ self._up[level]
        return torch.stack(codes, dim=1).view(batch, steps, depth).transpose(1, 2)
