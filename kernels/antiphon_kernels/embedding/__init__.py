"""Token embedding; ids that the host does not know yet are resolved on the device."""

from __future__ import annotations

import torch

from antiphon_kernels.embedding import reference


def embedding(
    ids: torch.Tensor,
    weight: torch.Tensor,
    drawn: torch.Tensor,
    *,
    scale: float = 1.0,
    out: torch.Tensor | None = None,
    tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows of the weight for token ids, of which a negative one names a drawn token.

    Args:
        ids: (N) int32; ``-1 - r`` stands for ``drawn[r]``, any other id is within [0, V).
        weight: (V, H), rows contiguous.
        drawn: (R) int32 or int64, the last token drawn for each table row.
        scale: factor of the embeddings, applied in fp32 (Gemma's sqrt(hidden)).
        out: (N, H) contiguous, written and returned; of the weight's dtype by default.
        tokens: (N) int32, takes the resolved ids.
    """
    if ids.is_cuda:
        from antiphon_kernels.embedding import kernel

        return kernel.embedding(ids, weight, drawn, scale, out, tokens)
    rows, resolved = reference.embedding(ids, weight, drawn, scale=scale)
    if tokens is not None:
        tokens.copy_(resolved)
    return rows if out is None else out.copy_(rows)
