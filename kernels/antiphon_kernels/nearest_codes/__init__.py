"""Residual quantisation: the nearest code of each codebook in turn."""

from __future__ import annotations

import torch

from antiphon_kernels.nearest_codes import reference


def nearest_codes(
    latents: torch.Tensor, books: torch.Tensor, norms: torch.Tensor, depth: int
) -> torch.Tensor:
    """Codes of the first ``depth`` books, each applied to what the ones before leave over.

    Distances are fp32 products without TF32. Of equal ones the lowest code is taken. A row's
    codes do not depend on the other rows.

    Args:
        latents: (N, dim) fp32, last axis contiguous.
        books: (levels, size, dim) fp32 contiguous.
        norms: (levels, size) fp32 contiguous, the squared length of each entry.
        depth: 1 .. levels.

    Returns:
        (depth, N) int64.

    Raises:
        ValueError: shapes or dtypes disagree.
    """
    levels, size, dim = books.shape
    if latents.shape[1:] != (dim,) or norms.shape != (levels, size) or not 1 <= depth <= levels:
        raise ValueError(
            f"nearest_codes: latents {tuple(latents.shape)}, norms {tuple(norms.shape)} and depth "
            f"{depth} do not fit books {tuple(books.shape)}"
        )
    if any(tensor.dtype != torch.float32 for tensor in (latents, books, norms)):
        raise ValueError("nearest_codes: latents, books and norms must be float32")
    if latents.is_cuda:
        from antiphon_kernels.nearest_codes import kernel

        return kernel.nearest_codes(latents, books, norms, depth)
    return reference.nearest_codes(latents, books, norms, depth)
