"""Ring attention in plain torch: the definition that kernels are tested against."""

from __future__ import annotations

import torch
from torch.nn import functional


def ring_attention(
    qkv: torch.Tensor,
    turns: torch.Tensor,
    ring: torch.Tensor,
    before: torch.Tensor,
    targets: torch.Tensor,
    window: int,
) -> torch.Tensor:
    """As :func:`antiphon_kernels.ring_attention.ring_attention`, for any number of positions."""
    steps, capacity = qkv.shape[1], ring.shape[1]
    positions = before[:, None] + torch.arange(steps, device=before.device)
    turn = torch.view_as_complex(turns)[:, :, None, None]
    pairs = torch.view_as_complex(qkv[:, :, :2].float().unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(pairs * turn).flatten(-2).to(qkv.dtype)
    ring[targets[:, None], positions % capacity] = torch.cat([turned[:, :, 1:], qkv[:, :, 2:]], 2)
    last = positions[:, -1:]
    held = last - (last - torch.arange(capacity, device=before.device)) % capacity
    age = positions[:, :, None] - held[:, None, :]
    seen = (age >= 0) & (age < window) & (held[:, None, :] >= 0)
    kept = ring[targets]
    attended = functional.scaled_dot_product_attention(
        turned[:, :, 0].transpose(1, 2),
        kept[:, :, 0].transpose(1, 2),
        kept[:, :, 1].transpose(1, 2),
        attn_mask=seen[:, None],
    )
    return attended.transpose(1, 2).flatten(2)
