"""The draw: noise, filters, penalties, distribution, independence, log-probabilities."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import antiphon_llm
import numpy as np
import pytest
import torch
from antiphon_llm.messages import Sampling
from antiphon_llm.request_key import request_key
from antiphon_llm.sampler.draw import draw
from antiphon_llm.sampler.filters import surviving_ids
from antiphon_llm.sampler.logprobs import scored_token
from antiphon_llm.sampler.penalties import TokenHistory
from antiphon_llm.sampler.philox import (
    NoiseKey,
    gumbel_noise,
    gumbel_noise_all,
    gumbel_of_words,
    philox_words,
)
from antiphon_llm.sampler.row import SamplerRow
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

END = 3


def row(
    prompt: tuple[int, ...] = (1, 2), choice: int = 0, vocabulary: int = 8, **fields: Any
) -> SamplerRow:
    return SamplerRow(
        Sampling(**fields), choice=choice, prompt_ids=prompt, end_ids=[END], vocabulary=vocabulary
    )


def random_logits(seed: int, rows: int, vocabulary: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2.5, (rows, vocabulary)).astype(np.float32)


class TestNoise:
    def test_philox_known_answers(self) -> None:
        zero = philox_words(np.zeros((4, 1), np.uint64), np.zeros((2, 1), np.uint64))
        assert [f"{int(word):08x}" for word in zero[:, 0]] == [
            "6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8",
        ]  # fmt: skip
        ones = philox_words(
            np.full((4, 1), 0xFFFFFFFF, np.uint64), np.full((2, 1), 0xFFFFFFFF, np.uint64)
        )
        assert [f"{int(word):08x}" for word in ones[:, 0]] == [
            "408f276d", "41c83b0e", "a20bc7c6", "6d5451fd",
        ]  # fmt: skip

    def test_request_key_is_splitmix64(self) -> None:
        assert request_key(0) == 0xE220A8397B1DCDAF
        assert request_key(-1) == request_key(2**64 - 1)

    def test_noise_is_finite_at_both_ends(self) -> None:
        low, high = gumbel_of_words(np.array([0, 2**32 - 1], dtype=np.uint64))
        assert math.isclose(low, -math.log(0.5 * 2**-32), rel_tol=1e-6)
        assert math.isclose(high, -math.log(24 * math.log(2)), rel_tol=1e-6)

    def test_sparse_noise_has_the_bits_of_the_whole_vocabulary(self) -> None:
        sources = [NoiseKey(request_key(seed), 17 * seed, seed % 3) for seed in range(1, 5)]
        vocabulary = 40_003
        rng = np.random.default_rng(0)
        ids = [np.sort(rng.choice(vocabulary, size, replace=False)) for size in (1, 7, 50, 999)]
        sparse = gumbel_noise(list(zip(sources, ids, strict=True)))
        for source, chosen, values in zip(sources, ids, sparse, strict=True):
            assert np.array_equal(gumbel_noise_all(source, vocabulary)[chosen], values)

    def test_every_part_of_the_key_matters(self) -> None:
        base = NoiseKey(request_key(1), 5, 0)
        others = [NoiseKey(request_key(2), 5, 0), NoiseKey(request_key(1), 6, 0),
                  NoiseKey(request_key(1), 5, 1)]  # fmt: skip
        noise = gumbel_noise_all(base, 64)
        assert all(not np.array_equal(noise, gumbel_noise_all(other, 64)) for other in others)


def reference_kept(logits: np.ndarray, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The three filters over an fp64 sort, ties kept."""
    wide = logits.astype(np.float64)
    ordered = np.sort(wide)[::-1]
    cut = ordered[top_k - 1] if 0 < top_k < len(wide) else -np.inf
    if top_p < 1.0:
        survivors = ordered[ordered >= cut]
        mass = np.exp(survivors - ordered[0])
        reached = np.flatnonzero(np.cumsum(mass) >= top_p * mass.sum())
        cut = max(cut, survivors[reached[0]] if len(reached) else survivors[-1])
    if min_p > 0:
        cut = max(cut, ordered[0] + math.log(min_p))
    return set(np.flatnonzero(wide >= min(cut, ordered[0])).tolist())


class TestFilters:
    @settings(max_examples=150, deadline=None)
    @given(
        hnp.arrays(np.float32, st.integers(1, 400), elements=st.floats(-30, 30, width=16)),
        st.integers(0, 70),
        st.sampled_from([1.0, 0.0, 0.1, 0.5, 0.9, 0.99, 1 - 2**-24]),
        st.sampled_from([0.0, 0.003, 0.3, 1.0]),
    )
    def test_kept_set_is_the_reference_s(
        self, logits: np.ndarray, top_k: int, top_p: float, min_p: float
    ) -> None:
        kept = surviving_ids(logits, top_k=top_k, top_p=top_p, min_p=min_p)
        actual = set(range(len(logits)) if kept is None else kept.tolist())
        expected = reference_kept(logits, top_k, top_p, min_p)
        if actual != expected:
            # fp32 masses may move the crossing of top_p by one tie group, never more.
            values = {float(logits[token]) for token in actual ^ expected}
            assert top_p not in (0.0, 1.0) and len(values) == 1
            mass = np.exp(logits.astype(np.float64) - logits.max())
            smaller = min(actual, expected, key=len)
            assert math.isclose(
                mass[sorted(smaller)].sum(), top_p * mass.sum(), rel_tol=1e-5
            ) or 0 < top_k < len(logits)

    @pytest.mark.parametrize("size", [64, 4096, 50_000])
    def test_large_rows_take_the_same_cut_as_a_sort(self, size: int) -> None:
        logits = random_logits(size, 1, size)[0]
        for top_k, top_p in ((1, 1.0), (40, 1.0), (0, 0.9), (50, 0.8), (0, 0.9999)):
            kept = surviving_ids(logits, top_k=top_k, top_p=top_p, min_p=0.0)
            assert kept is not None
            assert set(kept.tolist()) == reference_kept(logits, top_k, top_p, 0.0)

    @pytest.mark.parametrize("top_p", [0.0, 0.2, 0.5, 0.9, 0.999, 1 - 2**-24])
    @pytest.mark.parametrize("spread", [0.0, 1e-6, 0.01, 5.0])
    def test_plateaus_of_many_ids_are_cut_exactly(self, spread: float, top_p: float) -> None:
        """Near-equal logits, positive and negative, with ties and a far end of -inf."""
        rng = np.random.default_rng(5)
        logits = rng.normal(0, spread, 20_000).astype(np.float32)
        logits[:9000] = logits[9000:18_000]
        logits[18_000:18_500] = -np.inf
        logits[::7] = np.float32(0.0)
        logits[3::7] = np.float32(-0.0)
        kept = surviving_ids(logits, top_k=0, top_p=top_p, min_p=0.0)
        assert kept is not None
        masses = np.exp(logits - logits.max()).astype(np.float64)
        cut = logits[kept].min()
        assert set(kept.tolist()) == set(np.flatnonzero(logits >= cut).tolist())
        # Exact: the kept mass reaches top_p, and without the lowest tie group it does not.
        total = math.fsum(masses)
        assert math.fsum(masses[logits >= cut]) >= top_p * total * (1 - 1e-12)
        assert math.fsum(masses[logits > cut]) < max(top_p * total * (1 + 1e-12), 1e-300)

    def test_ties_at_the_cut_stay_whole(self) -> None:
        logits = np.array([1, 3, 2, 2, 2, 0], dtype=np.float32)
        kept = surviving_ids(logits, top_k=2, top_p=1.0, min_p=0.0)
        assert kept is not None and kept.tolist() == [1, 2, 3, 4]

    def test_filters_off_keep_everything(self) -> None:
        assert surviving_ids(np.zeros(4, np.float32), top_k=0, top_p=1.0, min_p=0.0) is None
        assert surviving_ids(np.zeros(4, np.float32), top_k=9, top_p=1.0, min_p=0.0) is None


class TestPenalties:
    @pytest.mark.parametrize("repetition", [1.0, 1.3, 0.7])
    @pytest.mark.parametrize("frequency", [0.0, 0.4])
    @pytest.mark.parametrize("presence", [0.0, -0.6])
    def test_equal_plain_torch_bit_for_bit(
        self, repetition: float, frequency: float, presence: float
    ) -> None:
        prompt, output = [1, 2, 2, 9], [9, 30, 30, 30, 4]
        logits = random_logits(3, 1, 48)[0]
        history = TokenHistory(prompt)
        for token in output:
            history.append(token)
        actual = logits.copy()
        history.apply(actual, repetition=repetition, frequency=frequency, presence=presence)
        wide = torch.from_numpy(logits.copy())
        counts = torch.zeros(48)
        for token in output:
            counts[token] += 1
        seen = counts > 0
        seen[prompt] = True
        penalised = torch.where(wide > 0, wide / repetition, wide * repetition)
        expected = torch.where(seen, penalised, wide)
        expected = expected - frequency * counts - presence * (counts > 0)
        assert np.array_equal(actual, expected.numpy())

    def test_presence_does_not_see_the_prompt(self) -> None:
        history = TokenHistory([5])
        logits = np.ones(8, np.float32)
        history.apply(logits, repetition=1.0, frequency=1.0, presence=1.0)
        assert (logits == 1).all()


KNOBS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7, "top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 12, "top_p": 0.7, "min_p": 0.02, "temperature": 1.3},
    {"repetition_penalty": 1.5, "presence_penalty": 0.5, "logit_bias": {0: 1.5, 6: -2.0}},
]


def exact_distribution(logits: np.ndarray, knobs: dict[str, Any]) -> np.ndarray:
    adjusted = row(**knobs).adjusted(logits)
    fields = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **knobs}
    kept = sorted(reference_kept(adjusted, fields["top_k"], fields["top_p"], fields["min_p"]))
    mass = np.zeros(len(logits))
    mass[kept] = np.exp(adjusted[kept].astype(np.float64))
    return mass / mass.sum()


class TestDistribution:
    DRAWS = 4_000

    @pytest.mark.parametrize("vocabulary", [8, 64])
    @pytest.mark.parametrize("knobs", KNOBS, ids=lambda knobs: "-".join(knobs) or "plain")
    def test_chi_square(self, vocabulary: int, knobs: dict[str, Any]) -> None:
        logits = random_logits(vocabulary, 1, vocabulary)[0]
        expected = exact_distribution(logits, knobs) * self.DRAWS
        sampler = row(seed=99, **knobs)
        rows = 200
        counts = np.zeros(vocabulary)
        tiled = np.tile(logits, (rows, 1))
        for start in range(0, self.DRAWS, rows):
            drawn = draw(tiled, [sampler] * rows, list(range(start, start + rows)))
            counts += np.bincount([d.token for d in drawn], minlength=vocabulary)
        assert counts[expected == 0].sum() == 0
        assert chi_square_plausible(counts, expected)

    def test_chi_square_notices_a_wrong_temperature(self) -> None:
        logits = random_logits(8, 1, 8)[0]
        sampler = row(seed=99, temperature=1.1)
        drawn = draw(np.tile(logits, (6000, 1)), [sampler] * 6000, list(range(6000)))
        counts = np.bincount([d.token for d in drawn], minlength=8)
        assert not chi_square_plausible(counts, exact_distribution(logits, {}) * 6000)


def chi_square_plausible(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Below the 1e-6 quantile, by the Wilson-Hilferty approximation; rare cells are pooled."""
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    freedom = max(1, len(wanted) - 1)
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    spread = 2 / (9 * freedom)
    quantile = freedom * (1 - spread + 4.75 * math.sqrt(spread)) ** 3
    return bool(statistic < quantile)


class TestIndependence:
    def test_order_and_company_do_not_change_a_draw(self) -> None:
        vocabulary = 3000
        logits = random_logits(4, 8, vocabulary)
        settings_of_rows = [*KNOBS, {"temperature": 0.0}]
        samplers = [row(seed=n, choice=n % 2, **knobs)
                    for n, knobs in enumerate(settings_of_rows)]  # fmt: skip
        positions = [10 * n for n in range(8)]
        together = [d.token for d in draw(logits, samplers, positions)]
        alone = [draw(logits[n : n + 1], [samplers[n]], [positions[n]])[0].token for n in range(8)]
        order = [5, 0, 7, 2, 1, 6, 4, 3]
        shuffled = draw(logits[order], [samplers[n] for n in order], [positions[n] for n in order])
        assert together == alone
        assert [d.token for d in shuffled] == [together[n] for n in order]

    def test_a_filter_that_keeps_everything_changes_nothing(self) -> None:
        logits = random_logits(5, 50, 1000)
        positions = list(range(50))
        plain = draw(logits, [row(seed=1)] * 50, positions)
        filtered = draw(logits, [row(seed=1, min_p=1e-30)] * 50, positions)
        assert [d.token for d in plain] == [d.token for d in filtered]

    def test_logits_are_left_as_they_were(self) -> None:
        logits = random_logits(6, 3, 100)
        before = logits.copy()
        draw(logits, [row(temperature=0.5), row(repetition_penalty=2.0), row(logit_bias={1: 5})],
             [1, 2, 3])  # fmt: skip
        assert np.array_equal(before, logits)


def test_greedy_is_decided_once() -> None:
    """Temperature 0 is translated where a request is parsed; nothing behind it asks again."""
    package = Path(antiphon_llm.__file__).parent
    asking = []
    for part in ("engine", "models", "sampler"):
        for path in sorted((package / part).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Compare) and "temperature" in ast.unparse(node):
                    asking.append(f"{path.name}: {ast.unparse(node)}")
    assert asking == ["row.py: sampling.temperature == 0", "row.py: self.temperature == 1"]


class TestGreedyAndErrors:
    def test_greedy_takes_the_lowest_of_equal_best(self) -> None:
        logits = np.array([[0, 4, 4, 1], [9, 9, 9, 9]], dtype=np.float32)
        greedy = row(temperature=0.0)
        assert [d.token for d in draw(logits, [greedy, greedy], [0, 0])] == [1, 0]

    def test_bad_rows_fail_alone(self) -> None:
        logits = np.ones((5, 16), dtype=np.float32)
        logits[1, 4] = np.nan
        logits[2] = -np.inf
        logits[3, 0] = np.inf
        greedy, free = row(temperature=0.0), row()
        drawn = draw(logits, [free, free, greedy, free, greedy], [7] * 5)
        assert [bool(d.error) for d in drawn] == [False, True, True, True, False]
        assert "NaN" in drawn[1].error and "no finite logit" in drawn[2].error

    def test_min_tokens_bars_the_end_ids_until_it_is_reached(self) -> None:
        logits = np.zeros((1, 8), dtype=np.float32)
        logits[0, END] = 50.0
        sampler = row(temperature=0.0, min_tokens=2)
        tokens = []
        for position in range(3):
            token = draw(logits, [sampler], [position])[0].token
            sampler.advance(token)
            tokens.append(token)
        assert tokens == [0, 0, END]

    def test_bias_can_force_and_forbid(self) -> None:
        logits = random_logits(8, 20, 32)
        forced = draw(logits, [row(logit_bias={17: 100.0})] * 20, list(range(20)))
        assert {d.token for d in forced} == {17}


class TestLogprobs:
    def test_equal_log_softmax_of_the_raw_logits(self) -> None:
        logits = random_logits(9, 4, 2000)
        samplers = [row(seed=n, logprobs=5, temperature=0.3, top_k=3, logit_bias={7: 9.0})
                    for n in range(4)]  # fmt: skip
        expected = torch.from_numpy(logits).log_softmax(-1)
        for index, drawn in enumerate(draw(logits, samplers, [1, 2, 3, 4])):
            best = expected[index].topk(5)
            assert drawn.top is not None
            assert drawn.top.token_ids == best.indices.tolist()
            np.testing.assert_allclose(drawn.top.logprobs, best.values, atol=1e-5)
            assert math.isclose(drawn.logprob, expected[index, drawn.token], abs_tol=1e-5)

    def test_ties_are_listed_by_id(self) -> None:
        scored = scored_token(np.array([1, 5, 5, 0], dtype=np.float32), 3, 2)
        assert scored.token_ids == [3, 1, 2]

    def test_zero_reports_the_chosen_token_only_and_minus_one_nothing(self) -> None:
        logits = random_logits(10, 2, 50)
        chosen, silent = draw(logits, [row(logprobs=0), row()], [0, 0])
        assert chosen.top is not None and chosen.top.token_ids == []
        assert not math.isnan(chosen.logprob)
        assert silent.top is None and math.isnan(silent.logprob)


def adjusted(sampler: SamplerRow, logits: np.ndarray) -> np.ndarray:
    return sampler.adjusted(logits, window=sampler.window(()))


def test_rewinding_forgets_drawn_tokens_and_nothing_else() -> None:
    """A draw that was dropped leaves no trace in penalties or in the count of outputs."""
    fields: dict[str, Any] = {
        "repetition_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": 0.25,
        "min_tokens": 3,
    }  # fmt: skip
    logits = np.linspace(-1.0, 1.0, 48, dtype=np.float32)
    fresh = row(prompt=(1, 2, 2), vocabulary=48, **fields)
    rewound = row(prompt=(1, 2, 2), vocabulary=48, **fields)
    for token in (5, 2, 5):
        fresh.advance(token)
        rewound.advance(token)
    before = adjusted(fresh, logits)
    for tokens in ((5,), (9,), (2, 9, 9)):
        for token in tokens:
            rewound.advance(token)
        assert not np.array_equal(adjusted(rewound, logits), before)
        rewound.rewind(3)
        assert np.array_equal(adjusted(rewound, logits), before)
    rewound.rewind(0)
    new = row(prompt=(1, 2, 2), vocabulary=48, **fields)
    assert np.array_equal(adjusted(rewound, logits), adjusted(new, logits))
