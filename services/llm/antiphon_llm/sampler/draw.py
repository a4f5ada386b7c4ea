"""The one draw: every generated token comes from here.

Raw logits, penalties, bias, processors, temperature, top_k, top_p, min_p, then
``argmax(l + s g)`` with the lowest id winning ties. A row draws the positions of a window of
1 + K tokens; plain decoding is a window of one. Rows are treated one by one, so neither the
batch nor the window can change a value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from antiphon_llm.messages import TopLogprobs
from antiphon_llm.speculation.accept import (
    accepts,
    distribution,
    draw_from,
    residual,
    uniform_of_words,
)

from .filters import surviving_ids
from .logprobs import token_scores
from .philox import NoiseClass, NoiseKey, first_word, gumbel_noise, gumbel_noise_all
from .row import SamplerRow

_SPARSE_IDS = 4096
"""Up to so many candidates the noise is computed for them alone, else for the vocabulary."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row drew at one position.

    ``error`` is set, and the token void, where no token was possible; ``reason`` is then an
    ErrorReason name without prefix.
    """

    token: int
    logprob: float = float("nan")
    top: TopLogprobs | None = None
    error: str = ""
    reason: str = ""


NAN_LOGITS = Draw(-1, error="the model produced NaN logits for this request", reason="NAN_LOGITS")
NO_VALID_TOKEN = Draw(
    -1,
    error="every token was ruled out: no finite logit is left for this request",
    reason="NO_VALID_TOKEN",
)
INFINITE_LOGITS = Draw(
    -1, error="the model produced infinite logits for this request", reason="BAD_LOGITS"
)


@dataclass(frozen=True, slots=True)
class DrawRow:
    """A row whose window is drawn.

    Attributes:
        sampler: state of the request, moved to what was drawn before.
        position: absolute position of the first token drawn.
        drafts: K proposed tokens; -1 from where there are none, never accepted.
        q: fp32 (K, V'), the distributions that drafts were drawn from with DRAFT noise, for
            residual acceptance; None for match acceptance.
    """

    sampler: SamplerRow
    position: int
    drafts: Sequence[int] = ()
    q: np.ndarray | None = None


def draw_windows(logits: np.ndarray, rows: Sequence[DrawRow]) -> list[list[Draw]]:
    """Draws each row's window up to the first token that differs from its draft.

    Position p is drawn as if the drafts before it were output; behind a draft that was not
    drawn no position can be reached. So n drafts are accepted where n + 1 tokens come back,
    and the tokens are those of plain decoding (match acceptance). Where a row has ``q``, its
    drafts are kept or replaced by residual acceptance, which gives the same distribution.

    Args:
        logits: fp32 (N, V), left unchanged; the 1 + K positions of each row one behind another,
            N their number.
        rows: in the order of their logits. No state is moved: advance each by what it drew.
    """
    result = []
    first = 0
    for row in rows:
        width = 1 + len(row.drafts)
        result.append(_window(logits[first : first + width], row))
        first += width
    return result


def draw(logits: np.ndarray, rows: Sequence[SamplerRow], positions: Sequence[int]) -> list[Draw]:
    """Draws one token for each row: windows of one, see ``draw_windows``."""
    windows = [DrawRow(row, position) for row, position in zip(rows, positions, strict=True)]
    return [drawn for (drawn,) in draw_windows(logits, windows)]


def _window(logits: np.ndarray, row: DrawRow) -> list[Draw]:
    sampler, drafts = row.sampler, row.drafts
    rules = sampler.window(drafts) if sampler.constrained else None
    drawn: list[Draw] = []
    for place in range(len(drafts) + 1):
        scores = sampler.adjusted(logits[place], ahead=drafts[:place], window=rules)
        if row.q is None or place == len(drafts) or drafts[place] < 0 or not sampler.noisy:
            drawn.append(_draw(logits[place], scores, sampler, row.position + place))
        else:
            drawn.append(_checked(logits[place], scores, row, place))
        if place == len(drafts) or drawn[-1].error or drawn[-1].token != drafts[place]:
            break
    return drawn


def _draw(raw: np.ndarray, scores: np.ndarray, row: SamplerRow, position: int) -> Draw:
    best = int(scores.argmax())
    highest = float(scores[best])
    if not math.isfinite(highest):
        return _failed(highest)
    token = best if not row.noisy else pick(scores, row, row.noise_key(position))
    if row.logprobs < 0:
        return Draw(token)
    return Draw(token, *token_scores(raw, token, row.logprobs))


def _checked(raw: np.ndarray, scores: np.ndarray, row: DrawRow, place: int) -> Draw:
    """The draft at a place of the window, or what residual acceptance draws instead."""
    highest = float(scores.max())
    if not math.isfinite(highest):
        return _failed(highest)
    assert row.q is not None
    sampler, token, q = row.sampler, row.drafts[place], row.q[place].astype(np.float64)
    kept = surviving_ids(scores, top_k=sampler.top_k, top_p=sampler.top_p, min_p=sampler.min_p)
    p = distribution(scores, kept)
    source = sampler.noise_key(row.position + place)
    u = uniform_of_words(first_word(replace(source, noise_class=NoiseClass.ACCEPT)))
    if not accepts(p[token], q[token], u[0]):
        noise = gumbel_noise_all(replace(source, noise_class=NoiseClass.RESIDUAL), len(p))
        token = int(draw_from(residual(p, q), noise))
    if sampler.logprobs < 0:
        return Draw(token)
    return Draw(token, *token_scores(raw, token, sampler.logprobs))


def pick(scores: np.ndarray, row: SamplerRow, source: NoiseKey) -> int:
    """The id whose score and noise sum up highest among those that the row's filters keep.

    ``scores`` is fp32 (V) with a finite maximum, adjusted and divided by the temperature.
    """
    ids = surviving_ids(scores, top_k=row.top_k, top_p=row.top_p, min_p=row.min_p)
    if ids is not None and len(ids) == 1:
        return int(ids[0])
    if ids is None or len(ids) > _SPARSE_IDS:
        noise = gumbel_noise_all(source, len(scores))
        noise += scores
        return int(noise.argmax() if ids is None else ids[noise[ids].argmax()])
    return int(ids[(scores[ids] + _noise_at(source, ids)).argmax()])


def _noise_at(source: NoiseKey, ids: np.ndarray) -> np.ndarray:
    (noise,) = gumbel_noise([(source, ids)])
    return noise


def _failed(highest: float) -> Draw:
    if math.isnan(highest):
        return NAN_LOGITS
    return NO_VALID_TOKEN if highest < 0 else INFINITE_LOGITS
