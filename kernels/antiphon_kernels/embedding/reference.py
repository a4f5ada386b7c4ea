"""Token embedding with tokens that only the device knows, in plain torch."""

from __future__ import annotations

import torch


def embedding(
    ids: torch.Tensor, weight: torch.Tensor, drawn: torch.Tensor, *, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the weight for token ids, of which a negative one names a drawn token.

    Args:
        ids: (N) int32; ``-1 - r`` stands for ``drawn[r]``.
        weight: (V, H).
        drawn: (R) int32 or int64, the last token drawn for each table row.
        scale: factor of the embeddings, applied in fp32.

    Returns:
        The embeddings (N, H) of the weight's dtype and the resolved ids (N) int32.
    """
    wide = ids.long()
    tokens = torch.where(wide < 0, drawn.long()[(-1 - wide).clamp(min=0)], wide)
    return (weight[tokens].float() * scale).to(weight.dtype), tokens.int()
