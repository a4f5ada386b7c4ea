"""The one draw: every generated token comes from here.

Raw logits, penalties, bias, processors, temperature, top_k, top_p, min_p, then
``argmax(l + s g)`` with the lowest id winning ties. Rows are treated one by one; only the
noise words of filtered rows are computed together, which cannot change a value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphon_llm.messages import TopLogprobs

from .filters import surviving_ids
from .logprobs import log_normaliser, top_logprobs
from .philox import NoiseKey, gumbel_noise, gumbel_noise_all
from .row import SamplerRow

_SPARSE_IDS = 4096
"""Up to so many candidates the noise is computed for them alone, else for the vocabulary."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row drew. ``error`` is set, and the token void, where no token was possible."""

    token: int
    logprob: float = float("nan")
    top: TopLogprobs | None = None
    error: str = ""


def draw(logits: np.ndarray, rows: Sequence[SamplerRow], positions: Sequence[int]) -> list[Draw]:
    """Draws one token for each row.

    ``logits`` is fp32 (R, V), left unchanged; ``positions`` are the absolute positions of the
    tokens being drawn.
    """
    tokens: list[int] = [-1] * len(rows)
    errors: list[str] = [""] * len(rows)
    sparse: list[tuple[int, np.ndarray, np.ndarray]] = []
    sources: list[tuple[NoiseKey, np.ndarray]] = []
    for index, (row, position) in enumerate(zip(rows, positions, strict=True)):
        scores = row.adjusted(logits[index])
        best = int(scores.argmax())
        highest = float(scores[best])
        if not math.isfinite(highest):
            errors[index] = _describe(highest)
            continue
        if not row.noisy:
            # The best logit survives every filter, so none needs to run.
            tokens[index] = best
            continue
        ids = surviving_ids(scores, top_k=row.top_k, top_p=row.top_p, min_p=row.min_p)
        if ids is not None and len(ids) == 1:
            tokens[index] = best
        elif (len(scores) if ids is None else len(ids)) > _SPARSE_IDS:
            noise = gumbel_noise_all(row.noise_key(position), len(scores))
            noise += scores
            tokens[index] = int(noise.argmax() if ids is None else ids[noise[ids].argmax()])
        else:
            ids = np.arange(len(scores)) if ids is None else ids
            sparse.append((index, ids, scores[ids]))
            sources.append((row.noise_key(position), ids))
    if sparse:
        for (index, ids, scores), noise in zip(sparse, gumbel_noise(sources), strict=True):
            tokens[index] = int(ids[(scores + noise).argmax()])
    return [
        _scored(logits[index], row, token, error)
        for index, (row, token, error) in enumerate(zip(rows, tokens, errors, strict=True))
    ]


def _scored(raw: np.ndarray, row: SamplerRow, token: int, error: str) -> Draw:
    if error or row.logprobs < 0:
        return Draw(token, error=error)
    normaliser = log_normaliser(raw)
    return Draw(token, float(raw[token]) - normaliser, top_logprobs(raw, row.logprobs, normaliser))


def _describe(maximum: float) -> str:
    if math.isnan(maximum):
        return "the model produced NaN logits for this request"
    if maximum < 0:
        return "every token was ruled out: no finite logit is left for this request"
    return "the model produced infinite logits for this request"
