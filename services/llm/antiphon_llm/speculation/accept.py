"""Acceptance of drafts that were drawn from a known distribution, as pure functions.

Speculative sampling ("Fast inference from transformers via speculative decoding" and
"Accelerating large language model decoding with speculative sampling", 2023): a draft ``d ~ q``
is kept with probability ``min(1, p(d) / q(d))``, else a token is drawn from what p has more than
q. The outcome is distributed as p. Drafts are kept at the rate 1 - TV(p, q), the most that is
possible; which token comes out depends on the drafts, though, unlike with match acceptance.

Probabilities are fp64; arrays may have leading dimensions where the shapes below have dots.
"""

from __future__ import annotations

import numpy as np


def distribution(scores: np.ndarray, kept: np.ndarray | None) -> np.ndarray:
    """fp64 (V) that a draw from adjusted fp32 scores (V) has when only the ``kept`` ids, int64,
    survived the filters; None keeps all. The largest score must be finite."""
    ids = slice(None) if kept is None else kept
    weights = np.exp(scores[ids].astype(np.float64) - float(scores.max()))
    p = np.zeros(scores.shape, dtype=np.float64)
    p[ids] = weights / weights.sum()
    return p


def uniform_of_words(words: np.ndarray) -> np.ndarray:
    """fp64 in (0, 1) of uint32 words: ``(x + 0.5) 2^-32``, exact."""
    return (words.astype(np.float64) + 0.5) * 2.0**-32


def accepts(p: np.ndarray, q: np.ndarray, u: np.ndarray) -> np.ndarray:
    """bool (..), whether drafts stay whose probabilities are p (..) under the target and q (..)
    under the drafter, for ``u`` (..) uniform in (0, 1)."""
    return u * q <= p


def residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """(.., V), not normalised: what is drawn from in place of a refused draft.

    A q of fewer ids than p has no mass on the others. Where p is nowhere above q, which only
    rounding can bring about, all mass is on p's largest.
    """
    left = p.copy()
    left[..., : q.shape[-1]] -= q
    np.maximum(left, 0.0, out=left)
    empty = ~left.any(axis=-1, keepdims=True)
    return np.where(empty, p == p.max(axis=-1, keepdims=True), left) if empty.any() else left


def draw_from(weights: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """int64 (..), an index of each last axis (.., V), drawn by weights that need not sum to 1
    with standard Gumbel noise of the same shape; the lowest index wins ties."""
    with np.errstate(divide="ignore"):
        return (np.log(weights) + noise).argmax(axis=-1)
