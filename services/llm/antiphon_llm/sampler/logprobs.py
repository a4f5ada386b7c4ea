"""Log-probabilities of raw logits."""

from __future__ import annotations

import numpy as np

from antiphon_llm.messages import TopLogprobs

from .filters import surviving_ids


def log_normaliser(logits: np.ndarray) -> float:
    """``ln sum e^l`` of fp32 logits (V), summed in fp64 over this row alone."""
    maximum = logits.max()
    return float(maximum) + float(np.log(np.exp(logits - maximum).sum(dtype=np.float64)))


def top_logprobs(logits: np.ndarray, count: int, normaliser: float) -> TopLogprobs:
    """The ``count`` best tokens, by log-probability and then by id."""
    if count == 0:
        return TopLogprobs([], [])
    ids = surviving_ids(logits, top_k=count, top_p=1.0, min_p=0.0)
    if ids is None:
        ids = np.arange(len(logits))
    best = ids[np.lexsort((ids, -logits[ids]))][:count]
    return TopLogprobs(best.tolist(), (logits[best].astype(np.float64) - normaliser).tolist())


def token_scores(logits: np.ndarray, token: int, count: int) -> tuple[float, TopLogprobs]:
    """A token's log-probability, and the ``count`` best tokens with its rank among all.

    ``logits`` is fp32 (V), as the model gave it.
    """
    normaliser = log_normaliser(logits)
    best = top_logprobs(logits, count, normaliser)
    best.rank = 1 + int(np.count_nonzero(logits > logits[token]))
    return float(logits[token]) - normaliser, best


def scored_token(logits: np.ndarray, token: int, count: int) -> TopLogprobs:
    """The given token first, then the ``count`` best ones."""
    logprob, best = token_scores(logits, token, count)
    return TopLogprobs([token, *best.token_ids], [logprob, *best.logprobs], best.rank)
