"""The draw in plain torch and numpy, row by row: the definition that kernels are tested against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from antiphon_kernels.philox import philox_blocks

if TYPE_CHECKING:
    from antiphon_kernels.sample import Mask

_LARGEST_UNIFORM = 1.0 - 2.0**-24


def sample(
    logits: torch.Tensor,
    columns: Sequence[torch.Tensor],
    out: torch.Tensor,
    faults: torch.Tensor,
    mask: Mask | None = None,
) -> None:
    """As :func:`antiphon_kernels.sample.sample`; ``columns`` are the settings in their order."""
    if mask is None:
        drawn = list(enumerate(logits.float()))
    else:
        places = mask.rows.tolist()
        drawn = list(zip(places, masked(logits[places].float(), mask), strict=True))
    for index, row in drawn:
        settings = [column[index] for column in columns]
        faults[index] = fault_of(row / settings[0])
        out[index] = 0
        if not faults[index]:
            scores = noisy_scores(row, settings)
            # The first of equal maxima, which torch.argmax does not promise.
            out[index] = (scores == scores.max()).nonzero()[0, 0]


def masked(logits: torch.Tensor, mask: Mask) -> torch.Tensor:
    """fp32 logits (C, V) of the mask's rows: -inf where barred, 0 at a forced id alone."""
    ids = torch.arange(logits.shape[1], device=logits.device)
    allowed = mask.bits[:, ids >> 5] >> (ids & 31) & 1 == 1
    forced = mask.forced[:, None]
    left = torch.where(allowed & (forced < 0), logits, -math.inf)
    return torch.where(ids == forced, 0.0, left)


def noisy_scores(logits: torch.Tensor, settings: Sequence[torch.Tensor]) -> torch.Tensor:
    """What one row's draw takes the largest of: fp32 (V), -inf where a filter cuts.

    Args:
        logits: fp32 (V) with a finite maximum.
        settings: the row's temperature, noise, top_k, top_p, log_min_p, key, position and
            choice, tensors of one element.
    """
    temperature, noise = settings[:2]
    top_k, top_p, log_min_p, key, position, choice = (value.item() for value in settings[2:])
    # By a tensor: CUDA divides by a scalar through its rounded reciprocal.
    scores = logits / temperature
    drawn = gumbel_noise(int(key), int(position), int(choice), len(scores)).to(scores.device)
    kept = scores >= cut(scores, int(top_k), top_p, log_min_p)
    return torch.where(kept, scores + noise * drawn, -math.inf)


def fault_of(scores: torch.Tensor) -> int:
    """The :class:`antiphon_kernels.sample.Fault` of fp32 scores (V)."""
    if bool(scores.isnan().any()):
        return 1
    highest = float(scores.max())
    return 0 if math.isfinite(highest) else 2 if highest < 0 else 3


def cut(scores: torch.Tensor, top_k: int, top_p: float, log_min_p: float) -> float:
    """The least score that the filters keep, of fp32 scores (V) with a finite maximum."""
    ordered = scores.sort(descending=True).values
    if 0 < top_k < len(ordered):
        ordered = ordered[ordered >= ordered[top_k - 1]]
    threshold = float(ordered[-1])
    if top_p < 1:
        masses = (ordered - ordered[0]).exp().double()
        reached = masses.cumsum(0) >= top_p * masses.sum()
        place = int(reached.int().argmax()) if bool(reached.any()) else -1
        threshold = float(ordered[place])
    lowest = float(ordered[0] + torch.tensor(log_min_p, dtype=torch.float32))
    return min(max(threshold, lowest), float(ordered[0]))


def gumbel_noise(key: int, position: int, choice: int, vocabulary: int) -> torch.Tensor:
    """Standard Gumbel noise, fp32 (V), of every token id.

    ``-ln(-log1p(-w))`` with ``w = (x + 0.5) 2^-32`` at most ``1 - 2^-24``: the smallest
    exponential wins, so the float's fine end lies at small ``w``.
    """
    words = philox_blocks(key & (1 << 64) - 1, -(-vocabulary // 4), (position, 0, choice))
    uniform = torch.from_numpy(words.reshape(-1)[:vocabulary].astype(np.float32))
    uniform.add_(0.5).mul_(2.0**-32).clamp_(max=_LARGEST_UNIFORM)
    return uniform.neg_().log1p_().neg_().log_().neg_()
