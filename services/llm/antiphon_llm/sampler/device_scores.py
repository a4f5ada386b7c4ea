"""Log-probabilities of raw logits, on the device."""

from __future__ import annotations

import numpy as np
import torch

from antiphon_llm.messages import TopLogprobs

LARGEST_TOP = 20
"""Best tokens that are read for every scored row; a request reports at most so many."""


def scores(raw: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of tokens (R) and of the best ones under raw fp32 logits (R, V).

    Returns fp64 (R, 2 + 2 * LARGEST_TOP): the token's and its rank, the best ones by
    log-probability and then by id, and their ids. One tensor, because one copy takes it to the
    host. Rows shorter than LARGEST_TOP tokens end with -inf and id -1.
    """
    highest = raw.amax(1, keepdim=True)
    normaliser = (raw - highest).exp().sum(1, dtype=torch.float64, keepdim=True).log()
    normaliser += highest
    ids = _best(raw)
    best = raw.gather(1, ids).double() - normaliser
    chosen = raw.gather(1, tokens.long()[:, None]).double() - normaliser
    rank = 1 + (raw > raw.gather(1, tokens.long()[:, None])).sum(1, keepdim=True)
    missing = LARGEST_TOP - ids.shape[1]
    if missing:
        best = torch.nn.functional.pad(best, (0, missing), value=-torch.inf)
        ids = torch.nn.functional.pad(ids, (0, missing), value=-1)
    return torch.cat((chosen, rank.double(), best, ids.double()), 1)


def read_scores(row: np.ndarray, count: int) -> tuple[float, TopLogprobs]:
    """A token's log-probability, and the ``count`` best tokens with its rank among all, from the
    host's copy of a row of ``scores``."""
    best = row[2 : 2 + count].tolist()
    ids = row[2 + LARGEST_TOP : 2 + LARGEST_TOP + count].astype(np.int64).tolist()
    return float(row[0]), TopLogprobs(ids, best, int(row[1]))


def _best(raw: torch.Tensor) -> torch.Tensor:
    """Ids, int64 (R, min(V, LARGEST_TOP)), of the best logits, the lower id first among equals.

    Selects by one integer that holds the logit's order above the id's, so that no two are equal.
    """
    # Adding 0 makes -0 the +0 that it equals.
    bits = (raw + 0.0).view(torch.int32)
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    descending_ids = torch.arange(raw.shape[1] - 1, -1, -1, device=raw.device)
    packed = (order << 32) | descending_ids
    best = packed.topk(min(raw.shape[1], LARGEST_TOP), dim=1).values
    return raw.shape[1] - 1 - (best & 0xFFFFFFFF)
