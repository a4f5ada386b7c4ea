"""Drawing drafts: the draw rule with the target's noise, or with noise and a q of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from antiphon_llm.messages import Sampling
from antiphon_llm.sampler.draw import draw
from antiphon_llm.sampler.row import SamplerRow
from antiphon_llm.speculation.guesses import Guesses

VOCABULARY = 40
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "seed": 3},
    {"temperature": 1.3, "seed": 4, "top_k": 6, "top_p": 0.8},
    {"temperature": 0.0, "frequency_penalty": 1.0},
    {"temperature": 0.9, "seed": 5, "repetition_penalty": 1.5, "logit_bias": {3: 2.0}},
    {"temperature": 0.0, "banned_token_ids": [1, 2, 3], "no_repeat_ngram_size": 2},
]


def sampler(**settings: Any) -> SamplerRow:
    row = SamplerRow(
        Sampling(**settings), choice=0, prompt_ids=[5, 6, 5], end_ids=(39,), vocabulary=VOCABULARY
    )
    row.advance(6)
    return row


@pytest.fixture
def logits() -> torch.Tensor:
    return 2 * torch.randn((len(SETTINGS), VOCABULARY), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("chain", [[], [5, 6]])
def test_a_draft_is_what_the_target_would_draw_behind_the_chain(
    logits: torch.Tensor, chain: list[int], on_device: bool
) -> None:
    rows = [sampler(**settings) for settings in SETTINGS]
    guesses = Guesses(on_device=on_device)
    positions = [9 + len(chain)] * len(rows)
    drafts = guesses.draw(logits, rows, positions, [chain] * len(rows))
    followed = [sampler(**settings) for settings in SETTINGS]
    for row in followed:
        for token in chain:
            row.advance(token)
    assert drafts == [drawn.token for drawn in draw(logits.numpy(), followed, positions)]
    # Only the first row wants nothing but the largest logit.
    assert guesses.copied == (len(SETTINGS) - 1 if on_device else 0)


def test_residual_drafts_come_with_the_distribution_that_they_are_drawn_from() -> None:
    """Chi-square of 6,000 keys against q, and q against the filtered softmax."""
    raw = 1.5 * torch.randn((1, 12), generator=torch.Generator().manual_seed(5))
    guesses = Guesses(distributions=(60, 1, VOCABULARY))
    settings = {"temperature": 0.8, "top_k": 7}
    counts = np.zeros(12)
    q = np.zeros((1, 12), dtype=np.float32)
    for seed in range(6_000):
        row = SamplerRow(
            Sampling(seed=seed, **settings), choice=0, prompt_ids=[1], end_ids=(), vocabulary=12
        )
        q[:] = 0
        counts[guesses.draw(raw, [row], [4], [[]], [q[0]])[0]] += 1
    kept = raw[0].topk(7).indices
    expected = torch.zeros(12).index_copy_(0, kept, (raw[0][kept] / 0.8).softmax(0)).numpy()
    assert np.allclose(q[0], expected, atol=1e-6)
    assert not counts[expected == 0].any()
    wanted = 6_000 * expected[expected > 0]
    # 6 degrees of freedom: 33.1 is exceeded once in 100,000 times.
    assert ((counts[expected > 0] - wanted) ** 2 / wanted).sum() < 33.1


def test_residual_noise_is_not_the_targets_and_greedy_is_certain(logits: torch.Tensor) -> None:
    rows = [sampler(temperature=1.0, seed=seed) for seed in range(60)]
    same = logits[1:2].expand(60, -1)
    coupled = Guesses().draw(same, rows, [4] * 60, [[]] * 60)
    q = np.zeros((60, VOCABULARY), dtype=np.float32)
    apart = Guesses(distributions=(60, 1, VOCABULARY)).draw(
        same, rows, [4] * 60, [[]] * 60, list(q)
    )
    assert coupled != apart
    greedy = np.zeros((1, VOCABULARY), dtype=np.float32)
    (token,) = Guesses(distributions=(60, 1, VOCABULARY)).draw(
        logits[:1], [sampler(temperature=0.0)], [4], [[]], [greedy[0]]
    )
    assert greedy[0, token] == greedy.sum() == 1.0 and token == int(logits[0].argmax())


def test_logits_that_allow_nothing_draft_nothing() -> None:
    poisoned = torch.full((2, VOCABULARY), float("nan"))
    poisoned[1] = -torch.inf
    rows = [sampler(temperature=1.0), sampler(temperature=0.0)]
    assert Guesses().draw(poisoned, rows, [4, 4], [[], []]) == [-1, -1]
