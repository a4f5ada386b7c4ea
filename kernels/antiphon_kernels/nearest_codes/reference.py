"""Residual quantisation in plain torch: the definition that kernels are tested against."""

from __future__ import annotations

import torch


def nearest_codes(
    latents: torch.Tensor, books: torch.Tensor, norms: torch.Tensor, depth: int
) -> torch.Tensor:
    """As :func:`antiphon_kernels.nearest_codes.nearest_codes`; the caller keeps TF32 off."""
    residual, codes = latents, []
    for book, norm in zip(books[:depth], norms, strict=False):
        nearest = torch.addmm(norm, residual, book.t(), alpha=-2).argmin(dim=1)
        codes.append(nearest)
        if len(codes) < depth:
            residual = residual - book.index_select(0, nearest)
    return torch.stack(codes)
