"""top_k, top_p and min_p as one threshold at a logit.

The kept set is ``{v : l_v >= tau}`` with tau the largest of three cuts. Each cut lies *at* a
logit, so ties stay whole and the order of a sort cannot matter; the largest logit and its
ties always survive.
"""

from __future__ import annotations

import numpy as np

_BLOCK = 64
"""Logits per block of the pre-filter that bounds the k-th largest from below."""
_SORTED_IDS = 4096
"""Up to so many logits top_p puts them all in order."""
_NEAR = (8.0, 16.0)
"""Depths below the maximum at which the mass that top_p wants is looked for first."""


def surviving_ids(
    logits: np.ndarray, *, top_k: int, top_p: float, min_p: float
) -> np.ndarray | None:
    """Ids, int64 ascending, that all three filters keep; None when none of them is on.

    ``logits`` is fp32 (V) with a finite maximum, already divided by the temperature. top_k 0
    and top_p 1 and min_p 0 are off; top_p counts the mass of top_k's survivors.
    """
    by_count = 0 < top_k < len(logits)
    if not by_count and top_p >= 1.0 and min_p <= 0.0:
        return None
    maximum = logits.max()
    if by_count:
        ids = _largest_with_ties(logits, top_k, maximum)
        values = logits[ids]
    else:
        ids, values = None, logits
    threshold = np.float32(-np.inf)
    if top_p < 1.0:
        threshold = _nucleus_threshold(values, top_p, maximum)
    if min_p > 0.0:
        threshold = max(threshold, maximum + np.float32(np.log(min_p)))
    kept = np.flatnonzero(values >= min(threshold, maximum))
    return kept if ids is None else ids[kept]


def _largest_with_ties(logits: np.ndarray, count: int, maximum: np.float32) -> np.ndarray:
    """Ids of the ``count`` largest logits and of all that equal the last of them."""
    if count == 1:
        return np.flatnonzero(logits >= maximum)
    candidates = np.flatnonzero(logits >= _lower_bound(logits, count))
    values = logits[candidates]
    place = len(values) - count
    return candidates[values >= np.partition(values, place)[place]]


def _lower_bound(logits: np.ndarray, count: int) -> np.float32:
    """A value that at least ``count`` logits reach: the count-th largest block maximum."""
    blocks = len(logits) // _BLOCK
    if blocks <= count:
        return np.float32(-np.inf)
    maxima = logits[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
    return np.float32(np.partition(maxima, blocks - count)[blocks - count])


def _nucleus_threshold(values: np.ndarray, top_p: float, maximum: np.float32) -> np.float32:
    """The largest logit tau whose ``sum over l >= tau of e^l`` reaches top_p of the total.

    fp32 masses are summed in fp64 over this row alone. Logits far from the maximum are left out
    where those near it reach top_p. What is still many is not sorted: masses are summed by the
    upper half of an order-preserving key of the logit's bits, and only the logits under the key
    where the sum crosses are put in order.
    """
    masses = np.exp(values - maximum)
    # The maximum alone has the mass 1, and always survives.
    wanted = max(1.0, top_p * float(masses.sum(dtype=np.float64)))
    for depth in _NEAR:
        near = values >= maximum - np.float32(depth)
        if float(masses[near].sum(dtype=np.float64)) >= wanted:
            values, masses = values[near], masses[near]
            break
    above = 0.0
    if len(values) > _SORTED_IDS:
        keys = _upper_keys(values)
        reached = np.bincount(keys, weights=masses, minlength=1 << 16)[::-1].cumsum()
        place = _first_at_least(reached, wanted)
        at_key = keys == (1 << 16) - 1 - place
        values, masses = values[at_key], masses[at_key]
        above = float(reached[place - 1]) if place else 0.0
    order = np.argsort(-values, kind="stable")
    reached = above + np.cumsum(masses[order], dtype=np.float64)
    return np.float32(values[order[_first_at_least(reached, wanted)]])


def _first_at_least(sums: np.ndarray, wanted: float) -> int:
    """Index of the first of these ascending sums that reaches a value. Sums of another order may
    miss it by their rounding: then that of the first one that is their last."""
    return int(np.searchsorted(sums, min(wanted, sums[-1])))


def _upper_keys(values: np.ndarray) -> np.ndarray:
    """int64 in [0, 2**16) that grow with fp32 values; equal values have equal keys."""
    # Adding 0 makes -0 the +0 that it equals.
    halves = ((values + np.float32(0.0)).view(np.int32) >> 16).astype(np.int64)
    halves ^= (halves >> 63) & 0x7FFF
    halves += 0x8000
    return halves
