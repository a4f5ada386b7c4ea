"""Residual acceptance: whatever the drafts' distribution, the output has the target's.

The statistics run over many keys at once through the same pure functions that the draw uses, and
the draw itself is compared with them key by key.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from antiphon_kernels.philox import philox_words
from antiphon_llm.messages import Sampling
from antiphon_llm.request_key import request_key
from antiphon_llm.sampler.draw import DrawRow, draw_windows
from antiphon_llm.sampler.filters import surviving_ids
from antiphon_llm.sampler.philox import NoiseClass, gumbel_of_words
from antiphon_llm.sampler.row import SamplerRow
from antiphon_llm.speculation.accept import (
    accepts,
    distribution,
    draw_from,
    residual,
    uniform_of_words,
)

from bench.draw_statistics import chi_square

from .conftest import VOCABULARY, next_token
from .drafters import Sampled

KEYS = 200_000
FAMILY_ALPHA = 1e-6
KINDS = ("random", "sparse", "plateau", "one-hot")
LENGTH = 3
"""Tokens whose joint distribution is tested."""


def table(kind: str, size: int, seed: int) -> np.ndarray:
    """Row-stochastic fp64 (size, size): what follows each token."""
    chance = np.random.default_rng(seed)
    logits = 1.5 * chance.standard_normal((size, size))
    if kind == "sparse":
        logits[chance.random((size, size)) < 0.6] = -np.inf
        logits[np.arange(size), chance.integers(0, size, size)] = 1.0
    elif kind == "plateau":
        logits = np.where(chance.random((size, size)) < 0.5, 0.0, -1.0)
    elif kind == "one-hot":
        logits[:] = -np.inf
        logits[np.arange(size), chance.integers(0, size, size)] = 0.0
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


class Noise:
    """Words of all keys at one position."""

    def __init__(self, keys: int) -> None:
        self._keys = np.arange(keys, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    def words(self, position: int, noise_class: NoiseClass, size: int) -> np.ndarray:
        """uint32 (keys, size)."""
        blocks, count = -(-size // 4), len(self._keys)
        counters = np.zeros((4, count * blocks), dtype=np.uint64)
        counters[0] = np.tile(np.arange(blocks, dtype=np.uint64), count)
        counters[1], counters[2] = position, int(noise_class)
        keys = np.repeat(self._keys, blocks)
        parts = np.stack((keys & np.uint64(0xFFFFFFFF), keys >> np.uint64(32)))
        found = philox_words(counters, parts)
        return found.T.reshape(count, blocks * 4)[:, :size]

    def gumbel(self, position: int, noise_class: NoiseClass, size: int) -> np.ndarray:
        return gumbel_of_words(self.words(position, noise_class, size).copy())

    def uniform(self, position: int, noise_class: NoiseClass = NoiseClass.ACCEPT) -> np.ndarray:
        return uniform_of_words(self.words(position, noise_class, 1))[:, 0]


Check = Callable[[Noise, int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(noise, position, p, q, drafts) to the tokens that come of the drafts."""


def check(
    noise: Noise, position: int, p: np.ndarray, q: np.ndarray, drafts: np.ndarray
) -> np.ndarray:
    rows = np.arange(len(drafts))
    stays = accepts(p[rows, drafts], q[rows, drafts], noise.uniform(position))
    other = draw_from(residual(p, q), noise.gumbel(position, NoiseClass.RESIDUAL, p.shape[1]))
    return np.where(stays, drafts, other)


def run(
    target: np.ndarray,
    drafter: np.ndarray,
    *,
    keys: int,
    depth: int,
    check: Check = check,
    draw_draft: Callable[..., np.ndarray] = draw_from,
    length: int = LENGTH,
) -> np.ndarray:
    """(keys, length) tokens by steps of up to ``depth`` drafts behind token 0."""
    size, noise = len(target), Noise(keys)
    tokens = np.zeros((keys, length + 1), dtype=np.int64)
    done = np.zeros(keys, dtype=np.int64)
    left = np.zeros(keys, dtype=np.int64)
    for position in range(length):
        # A key's step begins wherever its last one ended; ``left`` are the drafts it still has.
        left = np.where(done == position, depth, left)
        before = tokens[:, position]
        p, q = target[before], drafter[before]
        drafts = draw_draft(q, noise.gumbel(position, NoiseClass.DRAFT, size))
        checked = check(noise, position, p, q, drafts)
        plain = draw_from(p, noise.gumbel(position, NoiseClass.TARGET, size))
        tokens[:, position + 1] = np.where(left > 0, checked, plain)
        kept = (left > 0) & (checked == drafts)
        left = np.where(kept, left - 1, 0)
        done = np.where(kept, done, position + 1)
    return tokens[:, 1:]


def p_value(tokens: np.ndarray, target: np.ndarray) -> float:
    """Of a chi-square test of (keys, n) tokens behind token 0 against the exact joint."""
    size, (keys, length) = len(target), tokens.shape
    joint, codes = target[0], tokens[:, 0]
    for place in range(1, length):
        joint = (joint[:, None] * target[np.arange(joint.size) % size]).reshape(-1)
        codes = codes * size + tokens[:, place]
    seen = np.bincount(codes, minlength=joint.size)
    return chi_square(seen, keys * joint, pooled_below=10)


CASES = [(8, p, q, depth) for p in KINDS for q in KINDS for depth in (1, 2)] + [
    (64, p, q, 1) for p in ("random", "sparse") for q in KINDS
]


@pytest.mark.parametrize(("size", "kind", "draft_kind", "depth"), CASES)
def test_the_output_has_the_target_s_distribution(
    size: int, kind: str, draft_kind: str, depth: int
) -> None:
    assert_lossless(size, kind, draft_kind, depth, KEYS // 4)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "kind", "draft_kind", "depth"), CASES)
def test_the_output_has_the_target_s_distribution_over_many_keys(
    size: int, kind: str, draft_kind: str, depth: int
) -> None:
    assert_lossless(size, kind, draft_kind, depth, KEYS)


def assert_lossless(size: int, kind: str, draft_kind: str, depth: int, keys: int) -> None:
    target, drafter = table(kind, size, 1), table(draft_kind, size, 2)
    tokens = run(target, drafter, keys=keys, depth=depth, length=LENGTH if size == 8 else 1)
    assert p_value(tokens, target) > FAMILY_ALPHA / len(CASES)


def accept_greedily(noise, position, p, q, drafts):
    return drafts


def reused_noise(noise, position, p, q, drafts):
    """The residual is drawn with the words that the draft was drawn with."""
    rows = np.arange(len(drafts))
    stays = accepts(p[rows, drafts], q[rows, drafts], noise.uniform(position))
    other = draw_from(residual(p, q), noise.gumbel(position, NoiseClass.DRAFT, p.shape[1]))
    return np.where(stays, drafts, other)


def unfiltered_q(noise, position, p, q, drafts):
    """Acceptance believes in a distribution that the drafts were not drawn from."""
    flat = np.sqrt(q)
    return check(noise, position, p, flat / flat.sum(axis=1, keepdims=True), drafts)


def dropped_by_value(noise, position, p, q, drafts):
    """Drafts of one token are not proposed after they were drawn."""
    plain = draw_from(p, noise.gumbel(position, NoiseClass.TARGET, p.shape[1]))
    return np.where(drafts == 1, plain, check(noise, position, p, q, drafts))


@pytest.mark.parametrize("fault", [accept_greedily, reused_noise, unfiltered_q, dropped_by_value])
def test_planted_faults_are_found(fault: Check) -> None:
    target, drafter = table("random", 8, 1), table("random", 8, 2)
    found = [
        p_value(run(target, drafter, keys=KEYS // 2, depth=depth, check=fault), target)
        for depth in (1, 2)
    ]
    assert min(found) < FAMILY_ALPHA / len(CASES)


def test_drafts_stay_at_the_highest_possible_rate() -> None:
    target, drafter = table("random", 8, 1), table("random", 8, 2)
    noise, drafts = Noise(KEYS), np.zeros(KEYS, dtype=np.int64)
    p, q = target[drafts], drafter[drafts]
    drafts = draw_from(q, noise.gumbel(0, NoiseClass.DRAFT, 8))
    kept = accepts(p[0][drafts], q[0][drafts], noise.uniform(0)).mean()
    distance = 0.5 * np.abs(target[0] - drafter[0]).sum()
    assert abs(kept - (1 - distance)) < 5 * math.sqrt(0.25 / KEYS)


def test_nothing_left_is_the_target_s_largest() -> None:
    p = np.array([0.2, 0.5, 0.3])
    assert residual(p, p).tolist() == [0.0, 1.0, 0.0]
    assert residual(p, np.array([0.1, 0.7])).tolist() == pytest.approx([0.1, 0.0, 0.3])


def row_words(key: int, position: int, size: int, noise_class: NoiseClass) -> np.ndarray:
    """uint32 (size) of choice 1 of a request."""
    counters = np.zeros((4, size // 4), dtype=np.uint64)
    counters[0] = np.arange(size // 4)
    counters[1], counters[2], counters[3] = position, int(noise_class), 1
    keys = np.full((2, size // 4), key & 0xFFFFFFFF, dtype=np.uint64)
    keys[1] = key >> 32
    return philox_words(counters, keys).T.reshape(-1)


@pytest.mark.parametrize(
    "knobs", [{}, {"top_k": 5}, {"top_p": 0.8, "temperature": 0.7}, {"min_p": 0.1}]
)
def test_the_draw_does_what_the_functions_say(knobs: dict[str, float]) -> None:
    """Windows of real rows, key by key: accepted, replaced, and the plain draw behind all."""
    chance = np.random.default_rng(4)
    size, depth, position = 24, 3, 17
    outcomes = set()
    for seed in range(150):
        sampling = Sampling(**{"temperature": 1.0, "seed": seed, **knobs})
        row = SamplerRow(sampling, choice=1, prompt_ids=[1], end_ids=[], vocabulary=size)
        logits = 2 * chance.standard_normal((1 + depth, size)).astype(np.float32)
        q = np.exp(logits[:depth] + chance.standard_normal((depth, size))).astype(np.float32)
        q /= q.sum(axis=1, keepdims=True)
        drafts = [int(chance.choice(size, p=row_q / row_q.sum())) for row_q in q.astype(float)]
        window = DrawRow(row, position, drafts, q)
        (drawn,) = draw_windows(logits, [window])
        expected = []
        for place in range(1 + depth):
            scores = row.adjusted(logits[place])
            kept = surviving_ids(scores, top_k=row.top_k, top_p=row.top_p, min_p=row.min_p)
            p = distribution(scores, kept)
            words = partial(row_words, request_key(seed), position + place, size)
            if place == depth:
                noise = gumbel_of_words(words(NoiseClass.TARGET).copy())
                expected.append(int(draw_from(p, noise)))
                break
            token = drafts[place]
            u = uniform_of_words(words(NoiseClass.ACCEPT)[:1])[0]
            if not accepts(p[token], q[place].astype(np.float64)[token], u):
                noise = gumbel_of_words(words(NoiseClass.RESIDUAL).copy())
                expected.append(int(draw_from(residual(p, q[place].astype(np.float64)), noise)))
                break
            expected.append(token)
        assert [one.token for one in drawn] == expected
        outcomes.add(len(expected))
    assert outcomes == {1, 2, 3, 4}


def test_the_engine_s_output_has_the_target_s_distribution(engine_type) -> None:
    """Two tokens behind the prompt's first, by drafts of which most are refused or replaced."""
    prompt, knobs = [1, 2, 3], {"temperature": 3.0, "top_k": 4}
    engine = engine_type(
        drafter=Sampled([0.4, 0.3, 0.1, 0.1, 0.1]), draft_depth=2, residual=True,
        max_rows=16, step_tokens=96, queue_limit=5000, overlap_depth=1,
    )  # fmt: skip
    requests = 1500
    for number in range(requests):
        engine.submit(f"r{number}", prompt, seed=number, max_tokens=4, **knobs)
    engine.run()
    joint: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        joint = {
            (*before, token): share * p
            for before, share in joint.items()
            for token, p in enumerate(fake_distribution([*prompt, *before]))
            if p
        }
    seen = Counter(tuple(tokens[:3]) for tokens in engine.outputs.values())
    assert not set(seen) - set(joint)
    statistic = sum(
        (seen[tokens] - requests * share) ** 2 / (requests * share)
        for tokens, share in joint.items()
    )
    halves = torch.tensor([(len(joint) - 1) / 2, statistic / 2], dtype=torch.float64)
    assert float(torch.special.gammaincc(halves[0], halves[1])) > 1e-4
    telemetry = engine.speculation.telemetry
    assert 0.2 < telemetry.accepted / telemetry.proposed < 0.8


def fake_distribution(history: list[int]) -> np.ndarray:
    """fp64 (V) of the fake model's next token at temperature 3 among the four best."""
    scores = (-np.arange(VOCABULARY, dtype=np.float32) / VOCABULARY).copy()
    scores[next_token(history)] = 3.0
    scores /= np.float32(3.0)
    return distribution(scores, surviving_ids(scores, top_k=4, top_p=1.0, min_p=0.0))


def test_a_seed_of_the_caller_s_keeps_the_plain_text(engine_type) -> None:
    def outputs(**fields: object) -> dict[str, list[int]]:
        engine = engine_type(max_rows=8, step_tokens=48, queue_limit=100, **fields)
        for number in range(40):
            engine.submit(
                f"r{number}", [number, 5], seed=number, seeded=number % 2 == 0, max_tokens=12,
                temperature=0.0 if number % 3 == 0 else 3.0,
            )  # fmt: skip
        engine.run()
        return engine.outputs

    plain = outputs()
    drafted = outputs(drafter=Sampled([0.25] * 4), draft_depth=3, residual=True)
    bound = {f"r{number}" for number in range(40) if number % 2 == 0 or number % 3 == 0}
    assert {name: plain[name] for name in bound} == {name: drafted[name] for name in bound}
    assert sum(plain[name] != drafted[name] for name in set(plain) - bound) > 5
