"""Places of text tokens in the audio: dynamic time warping over cross-attention."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional


def token_positions(scores: torch.Tensor, skipped: int, median_width: int) -> list[int]:
    """First audio position of each text token and of what follows the last one.

    Args:
        scores: (heads, tokens, positions), scaled products of the queries and keys of the heads
            that follow the speech; tokens are the start sequence, the text and the end.
        skipped: tokens before the one that predicts the first text token.
        median_width: of the filter that smooths weights over positions, odd.

    Returns:
        As many positions as there are tokens behind ``skipped``, less one: ascending.
    """
    weights = scores.float().softmax(dim=-1)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, correction=0)
    weights = _median((weights - mean) / deviation.clamp(min=1e-12), median_width)
    cost = -weights.mean(dim=0)[skipped:-1]
    tokens, positions = warping_path(cost.double().cpu().numpy())
    begins = np.diff(tokens, prepend=-1) > 0
    return positions[begins].tolist()


def warping_path(cost: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The cheapest monotone path through costs (rows, columns), from corner to corner.

    A step goes to the next row, the next column or both; where steps are equally cheap, to the
    next column. Returns the path's rows and columns.
    """
    height, width = cost.shape
    total = np.full((height + 1, width + 1), np.inf, np.float32)
    step = np.full((height + 1, width + 1), 2, np.int8)
    step[:, 0] = 1
    total[0, 0] = 0
    # Cells of one anti-diagonal depend on the two before it only.
    for diagonal in range(2, height + width + 1):
        row = np.arange(max(1, diagonal - width), min(height, diagonal - 1) + 1)
        column = diagonal - row
        both, down = total[row - 1, column - 1], total[row - 1, column]
        right = total[row, column - 1]
        is_both, is_down = (both < down) & (both < right), (down < both) & (down < right)
        step[row, column] = np.where(is_both, 0, np.where(is_down, 1, 2))
        least = np.where(is_both, both, np.where(is_down, down, right))
        total[row, column] = cost[row - 1, column - 1] + least
    row, column = height, width
    path = []
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        kind = step[row, column] if row > 0 else 2
        row, column = row - (kind != 2), column - (kind != 1)
    rows, columns = np.array(path[::-1], np.int64).T
    return rows, columns


def _median(weights: torch.Tensor, width: int) -> torch.Tensor:
    """A running median over the last axis, mirrored at its ends."""
    half = width // 2
    if weights.shape[-1] <= half:
        return weights
    padded = functional.pad(weights, (half, half), mode="reflect")
    return padded.unfold(-1, width, 1).sort()[0][..., half]
