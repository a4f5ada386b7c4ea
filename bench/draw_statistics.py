"""A million draws at each of twenty settings against the exact distribution.

The exact distribution follows from the definition of the chain in fp64 and shares no code with
the sampler. The draws are made by the sampler's own steps, many positions at a time; that this
batch form draws what ``draw_windows`` draws is checked too (:func:`as_drawn`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from antiphon_kernels.philox import philox_blocks, philox_words
from antiphon_llm.messages import Sampling
from antiphon_llm.sampler.draw import DrawRow, draw_windows
from antiphon_llm.sampler.filters import surviving_ids
from antiphon_llm.sampler.philox import NoiseClass, gumbel_of_words
from antiphon_llm.sampler.row import SamplerRow

END = 3
PROMPT = (1, 2, 2, 5)
CHUNK = 8192
"""Random counters of a pass: the working set stays in the cache."""

Noise = Callable[[np.ndarray], np.ndarray]
"""uint32 words to standard Gumbel noise."""
Kept = Callable[[np.ndarray, Sampling], np.ndarray]
"""Adjusted logits (V) and settings to the ids that may be drawn, ascending."""


def _logits(kind: str, vocabulary: int) -> np.ndarray:
    """fp32 (V) of one shape of distribution."""
    rng = np.random.default_rng(vocabulary)
    values = rng.normal(0, 2, vocabulary).astype(np.float32)
    if kind == "plateau":
        values = np.round(values)
    elif kind == "tied":
        values[np.argsort(values)[-3:]] = 2.0
    elif kind == "near":
        values = (1 + 1e-6 * values).astype(np.float32)
    elif kind == "sparse":
        values[rng.permutation(vocabulary)[: vocabulary // 2]] = -np.inf
    elif kind == "peaked":
        values = np.full(vocabulary, np.float32(-9.0))
        values[vocabulary // 2] = 2.0
    elif kind == "rounded":
        values = torch.from_numpy(values).bfloat16().float().numpy()
    return values


@dataclass(frozen=True)
class Setting:
    """One case: logits, the request's settings and what it has drawn and drafted so far."""

    name: str
    vocabulary: int
    kind: str = "random"
    fields: dict[str, Any] = field(default_factory=dict)
    drawn: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()
    """Accepted before the position whose token is counted."""

    @property
    def logits(self) -> np.ndarray:
        """fp32 (V)."""
        return _logits(self.kind, self.vocabulary)

    def row(self, seed: int = 11) -> SamplerRow:
        """The sampler's row, behind ``drawn``."""
        row = SamplerRow(
            Sampling(seed=seed, **self.fields),
            choice=0,
            prompt_ids=PROMPT,
            end_ids=[END],
            vocabulary=self.vocabulary,
        )
        for token in self.drawn:
            row.advance(token)
        return row


_PENALTIES = {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25}
SETTINGS: tuple[Setting, ...] = (
    Setting("plain 8", 8),
    Setting("plain 64", 64),
    Setting("cold", 64, fields={"temperature": 0.6}),
    Setting("hot", 8, fields={"temperature": 1.7}),
    Setting("top_k", 64, fields={"top_k": 5}),
    Setting("top_k cuts a plateau", 64, "plateau", {"top_k": 12}),
    Setting("ties alone", 8, "tied", {"top_k": 1}),
    Setting("top_p", 64, fields={"top_p": 0.8}),
    Setting("top_p on near-equal logits", 64, "near", {"top_p": 0.5}),
    Setting("top_p cuts a plateau", 64, "plateau", {"top_p": 0.6}),
    Setting("top_p 0", 8, "tied", {"top_p": 0.0, "temperature": 0.9}),
    Setting("min_p", 64, fields={"min_p": 0.1}),
    Setting(
        "all filters", 64, "rounded", {"temperature": 1.3, "top_k": 30, "top_p": 0.9, "min_p": 0.02}
    ),
    Setting("penalties", 64, fields=_PENALTIES, drawn=(7, 9, 9)),
    Setting("penalties in a window", 8, fields=_PENALTIES, drawn=(6,), drafts=(7, 6)),
    Setting("logit bias", 8, fields={"logit_bias": {0: 1.5, 6: -2.0}, "temperature": 0.8}),
    Setting(
        "allowed ids, no end yet",
        64,
        fields={"allowed_token_ids": list(range(2, 20)), "min_tokens": 2},
    ),
    Setting(
        "n-gram block in a window",
        8,
        fields={"no_repeat_ngram_size": 2, "temperature": 1.5},
        drafts=(2,),
    ),
    Setting("half impossible", 64, "sparse", {"min_p": 0.001}),
    Setting("rare tail", 64, "peaked"),
)


def exact(setting: Setting) -> np.ndarray:
    """fp64 (V): the distribution that the chain defines, ties at a cut kept whole."""
    given = Sampling(**setting.fields)
    outputs = [*setting.drawn, *setting.drafts]
    history = [*PROMPT, *outputs]
    scores = setting.logits.astype(np.float64)
    for token in range(setting.vocabulary):
        if token in history:
            penalty = given.repetition_penalty
            scores[token] = (
                scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
            )
        count = outputs.count(token)
        scores[token] -= given.frequency_penalty * count + given.presence_penalty * (count > 0)
        scores[token] += given.logit_bias.get(token, 0.0)
        if given.allowed_token_ids and token not in given.allowed_token_ids:
            scores[token] = -np.inf
    if len(outputs) < given.min_tokens:
        scores[END] = -np.inf
    if given.no_repeat_ngram_size == 2:
        after = {then for last, then in pairwise(history) if last == history[-1]}
        scores[list(after)] = -np.inf
    # Rounded as the sampler rounds, so that ties are the same.
    scores = (scores / given.temperature).astype(np.float32).astype(np.float64)
    ordered = np.sort(scores)[::-1]
    cut = ordered[given.top_k - 1] if 0 < given.top_k < len(ordered) else -np.inf
    mass = np.where(scores >= cut, np.exp(scores - ordered[0]), 0.0)
    if given.top_p < 1:
        levels = sorted(set(scores[scores >= cut]), reverse=True)
        wanted = given.top_p * mass.sum()
        reached = (level for level in levels if mass[scores >= level].sum() >= wanted)
        cut = max(cut, next(reached))
    if given.min_p > 0:
        cut = max(cut, ordered[0] + math.log(given.min_p))
    kept = np.where(scores >= min(cut, ordered[0]), mass, 0.0)
    return kept / kept.sum()


def filtered(scores: np.ndarray, given: Sampling) -> np.ndarray:
    """The ids that the sampler's filters keep."""
    ids = surviving_ids(scores, top_k=given.top_k, top_p=given.top_p, min_p=given.min_p)
    return np.arange(len(scores)) if ids is None else ids


def noise_words(
    key: int, positions: np.ndarray, ids: np.ndarray, noise_class: int = NoiseClass.TARGET
) -> np.ndarray:
    """uint32 (positions, ids): the words that a draw of these ids takes at each position."""
    blocks, place = np.unique(ids >> 2, return_inverse=True)
    counters = np.zeros((4, len(positions), len(blocks)), dtype=np.uint64)
    counters[0] = blocks
    counters[1] = positions[:, None]
    counters[2] = int(noise_class)
    keys = np.array([[key & 0xFFFFFFFF], [key >> 32]], dtype=np.uint64)
    words = philox_words(counters.reshape(4, -1), keys).astype(np.uint32)
    by_position = words.T.reshape(len(positions), 4 * len(blocks))
    columns = 4 * place + (ids & 3)
    return by_position if len(columns) == 4 * len(blocks) else by_position[:, columns]


def draw_many(
    setting: Setting,
    count: int,
    *,
    noise: Noise = gumbel_of_words,
    kept: Kept = filtered,
    noise_class: int = NoiseClass.TARGET,
    seed: int = 11,
) -> Iterator[np.ndarray]:
    """Tokens of positions 0 to ``count - 1``, some at a time, by the sampler's own steps.

    ``noise`` and ``kept`` take the place of a step to plant a fault.
    """
    row = setting.row(seed)
    window = row.window(setting.drafts)
    scores = row.adjusted(setting.logits, ahead=setting.drafts, window=window)
    ids = kept(scores, row.sampling)
    key = row.noise_key(0).key
    size = max(1, CHUNK // len(np.unique(ids >> 2)))
    for start in range(0, count, size):
        positions = np.arange(start, min(start + size, count))
        values = noise(noise_words(key, positions, ids, noise_class).reshape(-1))
        sums = values.reshape(len(positions), len(ids)) + scores[ids]
        yield ids[sums.argmax(axis=1)]


def as_drawn(setting: Setting, count: int, seed: int = 11) -> bool:
    """Whether the batch form's first ``count`` tokens are those of ``draw_windows``."""
    logits = np.tile(setting.logits, (1 + len(setting.drafts), 1))
    forced = logits.copy()
    for place, token in enumerate(setting.drafts):
        # Makes the drafts certain, so that the position behind them is reached.
        forced[place] = -np.inf
        forced[place, token] = 0.0
    row = setting.row(seed)
    first = len(setting.drafts)
    batch = stream(setting, count + first, seed=seed)[first:]
    for position, expected in enumerate(batch.tolist()):
        (drawn,) = draw_windows(forced, [DrawRow(row, position, setting.drafts)])
        if drawn[-1].token != expected or len(drawn) != 1 + first:
            return False
    return True


def chi_square(counts: np.ndarray, expected: np.ndarray, *, pooled_below: float = 5) -> float:
    """p-value of counts (cells) under the expected ones; 0 where an impossible cell was drawn.

    Cells that expect fewer are pooled, so the tail is judged together.
    """
    if counts[expected == 0].sum():
        return 0.0
    common = expected >= pooled_below
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    if len(wanted) < 2:
        return 1.0
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    half = torch.tensor([(len(wanted) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def p_value(setting: Setting, count: int, **faults: Any) -> float:
    """How likely such counts of ``count`` draws are under the exact distribution."""
    counts = np.zeros(setting.vocabulary)
    for tokens in draw_many(setting, count, **faults):
        counts += np.bincount(tokens, minlength=setting.vocabulary)
    return chi_square(counts, exact(setting) * count)


def joint_p_value(setting: Setting, first: np.ndarray, second: np.ndarray) -> float:
    """That two streams of a setting's tokens are independent of each other.

    The second may be of another class, choice or request, or of the positions behind the first's.
    """
    counts = np.bincount(first * setting.vocabulary + second, minlength=setting.vocabulary**2)
    single = exact(setting)
    return chi_square(counts, np.outer(single, single).reshape(-1) * len(first))


def stream(setting: Setting, count: int, **arguments: Any) -> np.ndarray:
    """int64 (count): the tokens of :func:`draw_many` in one piece."""
    return np.concatenate(list(draw_many(setting, count, **arguments)))


def tail_p_value(count: int, *, noise: Noise = gumbel_of_words, log_odds: float = -16.0) -> float:
    """That a token of probability e**log_odds against one other is drawn as often as it should.

    It is drawn only where its own word is small, so only such words are tried: the upper bits
    of its word are zero and the rest random, which multiplies the rate by 2**12 exactly.
    """
    ids = np.arange(2)
    drawn = 0
    for start in range(0, count, CHUNK):
        positions = np.arange(start, min(start + CHUNK, count))
        words = noise_words(0x5EED, positions, ids)
        values = noise(words[:, 0].copy()), noise(words[:, 1] >> 12)
        drawn += int((values[1] + np.float32(log_odds) > values[0]).sum())
    odds = math.exp(log_odds)
    expected = count * _rate_below(odds, 2.0**-12) * 2.0**12
    cells = np.array([drawn, count - drawn], dtype=float)
    return chi_square(cells, np.array([expected, count - expected]))


def _rate_below(odds: float, bound: float) -> float:
    """P(E1 < odds * E0 and w1 < bound) for exponentials E0, E1 = -ln(1 - w1)."""
    limit = -math.log1p(-bound)
    # P = integral over e1 in [0, limit] of e^-e1 * P(E0 > e1 / odds) de1.
    rate = 1 + 1 / odds
    return -math.expm1(-limit * rate) / rate


def stray_rate(rows: int, vocabulary: int, *, noise: Noise = gumbel_of_words) -> float:
    """Share of rows that draw any id but the one that has all but 1e-9 of the probability."""
    scores = np.full(vocabulary, np.float32(-math.log(vocabulary * 1e9)))
    scores[vocabulary // 3] = 0.0
    strays = 0
    for position in range(rows):
        words = philox_blocks(0xABCD, -(-vocabulary // 4), (position, NoiseClass.TARGET, 0))
        values = noise(words.reshape(-1)[:vocabulary]) + scores
        strays += int(values.argmax() != vocabulary // 3)
    return strays / rows
