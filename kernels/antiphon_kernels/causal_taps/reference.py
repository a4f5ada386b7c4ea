"""A causal convolution in plain torch: the definition that kernels are tested against."""

from __future__ import annotations

import torch
from torch.nn import functional


def causal_taps(
    x: torch.Tensor,
    old: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    bias: torch.Tensor | None,
    added: torch.Tensor | None,
    *,
    elu: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`antiphon_kernels.causal_taps.causal_taps`, with products of the whole weight."""
    batch, steps, channels = x.shape
    taps = weights[0].shape[0] // channels
    active = functional.elu(x) if elu else x
    extended = torch.cat([old.view(batch, taps - 1, channels), active], dim=1)
    windows = torch.cat([extended[:, tap : tap + steps] for tap in range(taps)], dim=2).float()
    out = windows @ sum(weight.float() for weight in weights)
    if bias is not None:
        out = out + bias.float()
    if added is not None:
        out = out + added.float()
    return out.to(x.dtype), extended[:, steps:].flatten(1)
