"""The draw's Triton kernels against their reference, token for token."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from antiphon_kernels.sample import (
    CANDIDATES,
    Fault,
    Mask,
    RowSettings,
    Workspace,
    kernel,
    mask_words,
    reference,
)
from antiphon_kernels.sample.arithmetic import (
    gumbel_of_words,
    mass_of,
    noise_of_ids,
    rough_gumbel_of_words,
    words_of_block,
)
from antiphon_kernels.sample.cases import (
    GREEDY,
    MIXED,
    PLAIN,
    SEARCHED,
    USUAL,
    Knobs,
    peaked_logits,
    settings_of,
)

INF = math.inf
NEAR = 2e-6
"""Scores of two tokens so near that the last bits of a device's logarithm may choose."""


def draw(logits: torch.Tensor, settings: RowSettings) -> tuple[list[int], list[int]]:
    rows, vocabulary = logits.shape
    out = torch.full((rows,), -1, dtype=torch.int32, device=logits.device)
    faults = torch.full((rows,), -1, dtype=torch.int32, device=logits.device)
    kernel.sample(
        logits, settings, out, faults, Workspace.allocate(rows, vocabulary, logits.device)
    )
    return out.tolist(), faults.tolist()


def check(logits: torch.Tensor, settings: RowSettings) -> list[int]:
    """Draws and compares with the reference; only a near tie may differ."""
    tokens, faults = draw(logits, settings)
    assert faults == [Fault.NONE] * len(logits)
    for index, (row, token) in enumerate(zip(logits.float(), tokens, strict=True)):
        scores = reference.noisy_scores(row, [column[index] for column in settings.columns()])
        best = float(scores.max())
        expected = int((scores == best).nonzero()[0, 0])
        near = abs(float(scores[token]) - best) <= NEAR * max(1.0, abs(best))
        assert token == expected or (settings.noise[index] != 0 and near), (index, token, expected)
    return tokens


def masks(
    rows: list[int], vocabulary: int, share: float, device: torch.device, seed: int = 0
) -> Mask:
    """Allows a share of the ids, and always the last one; no id is forced."""
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.rand(len(rows), 32 * mask_words(vocabulary), generator=generator) < share
    allowed[:, vocabulary - 1] = True
    bits = (allowed.view(len(rows), -1, 32).long() << torch.arange(32)).sum(-1).to(torch.int32)
    return Mask(
        torch.tensor(rows, dtype=torch.int32, device=device),
        bits.to(device),
        torch.full((len(rows),), -1, dtype=torch.int32, device=device),
    )


def check_masked(logits: torch.Tensor, settings: RowSettings, mask: Mask) -> list[int]:
    """As ``check`` for the mask's rows; the others' outcome must stay as it was."""
    rows, vocabulary = logits.shape
    out, faults = torch.full((2, rows), -7, dtype=torch.int32, device=logits.device)
    workspace = Workspace.allocate(rows, vocabulary, logits.device)
    kernel.sample(logits, settings, out, faults, workspace, mask)
    assert not workspace.counters[:, 2:].any()
    places = mask.rows.tolist()
    others = [row for row in range(rows) if row not in places]
    assert out[others].eq(-7).all() and faults[others].eq(-7).all()
    assert faults[places].eq(Fault.NONE).all()
    left = reference.masked(logits[places].float(), mask)
    for row, values in zip(places, left, strict=True):
        scores = reference.noisy_scores(values, [column[row] for column in settings.columns()])
        token, best = int(out[row]), float(scores.max())
        assert values[token] > -INF, (row, token)
        assert float(scores[token]) >= best - NEAR * max(1.0, abs(best)), (row, token)
    return out.tolist()


def rows_of(settings: RowSettings, order: list[int]) -> RowSettings:
    chosen = RowSettings.allocate(len(order), settings.buffer.device)
    for mine, all_rows in zip(chosen.columns(), settings.columns(), strict=True):
        mine.copy_(all_rows[order])
    return chosen


@triton.jit
def _noise(
    out, by_id, rough, key, position, choice, BLOCK: tl.constexpr, NATIVE: tl.constexpr
):  # fmt: skip
    ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    words = words_of_block(tl.program_id(0) * BLOCK, key, position, choice, BLOCK)
    tl.store(out + ids, gumbel_of_words(words))
    tl.store(by_id + ids, noise_of_ids(ids, key, position, choice))
    tl.store(rough + ids, rough_gumbel_of_words(words, NATIVE))


@triton.jit
def _extreme_noise(words, out, rough, BLOCK: tl.constexpr, NATIVE: tl.constexpr):
    places = tl.arange(0, BLOCK)
    word = tl.load(words + places).to(tl.uint32, bitcast=True)
    tl.store(out + places, gumbel_of_words(word))
    tl.store(rough + places, rough_gumbel_of_words(word, NATIVE))


@triton.jit
def _masses(depths, out, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(out + places, mass_of(tl.load(depths + places)))


def test_noise_is_the_reference_s_to_the_last_bits(device: torch.device) -> None:
    key, position, choice, blocks, size = -0x123456789ABCDEF, 40_321, 2, 32, 1024
    out, by_id, rough = torch.empty((3, blocks * size), device=device)
    _noise[(blocks,)](
        out, by_id, rough, key, position, choice, BLOCK=size, NATIVE=device.type == "cuda"
    )
    expected = reference.gumbel_noise(key, position, choice, blocks * size)
    assert torch.equal(out, by_id)
    error = (out.cpu() - expected).abs() / expected.abs().clamp(min=1)
    assert float(error.max()) < 4e-7
    assert float((rough - out).abs().max()) < 1e-4


def test_noise_of_the_smallest_and_largest_words(device: torch.device) -> None:
    # Every power of two and its neighbours, where the pieces of the logarithms meet.
    powers = [1 << bit for bit in range(32)]
    quarter = [int(share * 2**32) + step for share in (1 / 32, 0.29289323, 0.5) for step in (-1, 1)]
    words = [0, *powers, *(power - 1 for power in powers), *quarter, 2**32 - 1]
    words += [7] * (128 - len(words))
    as_int = torch.tensor(words, dtype=torch.int64).to(torch.int32).to(device)
    out, rough = torch.empty((2, 128), device=device)
    _extreme_noise[(1,)](as_int, out, rough, BLOCK=128, NATIVE=device.type == "cuda")
    uniform = ((np.array(words, np.float32) + np.float32(0.5)) * np.float32(2**-32)).clip(
        max=np.float32(1 - 2**-24)
    )
    exact = -np.log(-np.log1p(-uniform.astype(np.float64)))
    error = np.abs(out.cpu().numpy() - exact) / np.maximum(1, np.abs(exact))
    assert error.max() < 4e-7
    assert np.abs(rough.cpu().numpy() - exact).max() < 1e-4


def test_masses_are_exponentials_in_fixed_point(device: torch.device) -> None:
    depths = torch.linspace(-70, 0, 4096, device=device)
    depths[0] = -INF
    out = torch.zeros(4096, dtype=torch.int64, device=device)
    _masses[(1,)](depths, out, BLOCK=4096)
    exact = depths.double().exp() * 2.0**44
    assert int(out[-1]) == 2**44
    assert bool(((out.double() - exact).abs() <= 0.51 + exact * 1.5e-7).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("vocabulary", [1, 61, 4099, pytest.param(9001, marks=pytest.mark.slow)])
def test_draws_equal_the_reference(
    device: torch.device, vocabulary: int, dtype: torch.dtype
) -> None:
    logits = peaked_logits(len(MIXED), vocabulary, device, vocabulary).to(dtype)
    before = logits.clone()
    check(logits, settings_of(MIXED, device, vocabulary))
    assert torch.equal(logits, before)


def test_rows_of_a_wider_block_are_read_in_place(device: torch.device) -> None:
    block = peaked_logits(4, 3000, device)
    check(block[:, 500:2600], settings_of(MIXED[1:5], device))


def test_a_cut_beyond_the_candidates_is_searched(device: torch.device) -> None:
    logits = peaked_logits(len(SEARCHED), 4100, device, 5)
    check(logits, settings_of(SEARCHED, device, 5))


def test_a_cut_below_every_finite_logit_keeps_them_all(device: torch.device) -> None:
    logits = torch.full((3, 5000), -INF)
    logits[:, 4000:4500] = peaked_logits(3, 500, torch.device("cpu"))
    knobs = (Knobs(top_k=1000), Knobs(top_k=1000, top_p=0.9), Knobs(top_k=40, min_p=1e-30))
    check(logits.to(device), settings_of(knobs, device))


@pytest.mark.parametrize("seed", range(3))
def test_ties_stay_whole_and_the_lowest_id_wins(device: torch.device, seed: int) -> None:
    knobs = (GREEDY, Knobs(top_k=3), Knobs(top_p=0.5), Knobs(top_k=9, top_p=0.8), Knobs(top_k=1))
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(-3, 4, (5, 1500), generator=generator).float()
    check(steps.to(device), settings_of(knobs, device, seed))
    tokens = check(torch.ones(5, 1500, device=device), settings_of(knobs, device, seed))
    assert tokens[0] == 0 and len(set(tokens)) > 2


def test_a_plateau_of_near_equal_logits_is_cut_exactly(device: torch.device) -> None:
    # More distinct neighbours in the last bits than there is room for candidates.
    count = 2 * CANDIDATES
    bits = torch.arange(count, dtype=torch.int32) + torch.tensor(9.0).view(torch.int32)
    plateau = bits.view(torch.float32)[torch.randperm(count)].expand(3, -1).to(device)
    check(plateau, settings_of((Knobs(top_k=7), Knobs(top_p=0.3), Knobs(top_k=900)), device))
    for top_k in (7, 900):
        row = plateau[0].cpu()
        settings = settings_of((Knobs(top_k=top_k),) * 4, device)
        tokens, _ = draw(plateau[:1].expand(4, -1), settings)
        ranks = [int((row > row[token]).sum()) for token in tokens]
        assert max(ranks) < top_k


def test_zeros_of_both_signs_are_equal(device: torch.device) -> None:
    logits = torch.full((4, 300), -5.0)
    logits[:, 7], logits[:, 5], logits[:, 200] = 0.0, -0.0, -0.0
    knobs = (GREEDY, Knobs(top_k=1), Knobs(top_k=2), Knobs(top_p=0.2))
    check(logits.to(device), settings_of(knobs, device))
    assert draw(logits[:1].to(device), settings_of((GREEDY,), device))[0] == [5]


def test_a_draw_depends_on_its_row_alone(device: torch.device) -> None:
    rows, vocabulary = len(MIXED), 2100
    logits, settings = peaked_logits(rows, vocabulary, device, 9), settings_of(MIXED, device, 9)
    together, _ = draw(logits, settings)
    order = [7, 0, 11, 3, 2, 9, 1, 4, 10, 8, 6, 5]
    shuffled, _ = draw(logits[order], rows_of(settings, order))
    assert shuffled == [together[row] for row in order]
    for row in (1, 2, 3, 8):
        alone, _ = draw(logits[row : row + 1], rows_of(settings, [row]))
        assert alone == [together[row]]


def test_bad_rows_are_flagged_and_their_neighbours_drawn(device: torch.device) -> None:
    logits = torch.randn(9, 2500, generator=torch.Generator().manual_seed(3))
    logits[1, 2400] = math.nan
    logits[2] = -INF
    logits[3, 0] = INF
    logits[4, :2499] = -INF
    logits[5, 3] = math.nan
    logits[6] = math.nan
    knobs = (USUAL, USUAL, PLAIN, GREEDY, USUAL, GREEDY, PLAIN, PLAIN, USUAL)
    settings = settings_of(knobs, device)
    tokens, faults = draw(logits.to(device), settings)
    assert faults == [Fault.NONE, Fault.NAN, Fault.EMPTY, Fault.INFINITE, Fault.NONE,
                      Fault.NAN, Fault.NAN, Fault.NONE, Fault.NONE]  # fmt: skip
    assert [token for token, fault in zip(tokens, faults, strict=True) if fault] == [0] * 5
    assert tokens[4] == 2499
    good = [0, 7, 8]
    assert [tokens[row] for row in good] == check(logits[good].to(device), rows_of(settings, good))


def test_tokens_follow_the_distribution(device: torch.device) -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])
    if device.type == "cpu":
        pytest.skip("thousands of interpreted programs; the reference's tokens stand for them")
    draws = 3000
    logits = probabilities.log().expand(draws, -1).contiguous().to(device)
    tokens, _ = draw(logits, settings_of((Knobs(),) * draws, device))
    counts = np.bincount(tokens, minlength=5)
    expected = probabilities.numpy() * draws
    # 99.99 % quantile at 4 degrees of freedom.
    assert ((counts - expected) ** 2 / expected).sum() < 23.5


@pytest.mark.parametrize("share", [0.9, 0.3, 0.002, 0.0], ids=str)
@pytest.mark.parametrize("vocabulary", [61, 4099, pytest.param(9001, marks=pytest.mark.slow)])
def test_masked_rows_draw_what_their_bits_allow(
    device: torch.device, vocabulary: int, share: float
) -> None:
    order = [8, 0, 3, 11, 2, 1, 9, 4]
    logits = peaked_logits(len(MIXED), vocabulary, device, vocabulary)
    before = logits.clone()
    mask = masks(order, vocabulary, share, device, vocabulary)
    check_masked(logits, settings_of(MIXED, device, vocabulary), mask)
    assert torch.equal(logits, before)


def test_masked_rows_whose_cut_is_searched(device: torch.device) -> None:
    logits = peaked_logits(len(SEARCHED), 4100, device, 5)
    for share in (0.8, 0.05):
        mask = masks(list(range(len(SEARCHED))), 4100, share, device)
        check_masked(logits, settings_of(SEARCHED, device, 5), mask)


def test_a_mask_of_ones_changes_nothing(device: torch.device) -> None:
    logits, settings = peaked_logits(len(MIXED), 2099, device), settings_of(MIXED, device)
    mask = masks(list(range(len(MIXED))), 2099, 2.0, device)
    assert check_masked(logits, settings, mask) == draw(logits, settings)[0]


def test_a_forced_id_is_drawn_whatever_its_logit(device: torch.device) -> None:
    logits = peaked_logits(6, 5000, device)
    logits[0, 4321], logits[1, 4999], logits[2, 0] = -INF, -INF, math.nan
    settings = settings_of((GREEDY, PLAIN, USUAL, PLAIN, Knobs(top_p=0.5), USUAL), device)
    mask = masks([0, 1, 2, 3, 4], 5000, 0.2, device)
    mask.forced[:] = torch.tensor([4321, 4999, 0, 17, -1], dtype=torch.int32)
    assert check_masked(logits, settings, mask)[:4] == [4321, 4999, 0, 17]


def test_a_mask_that_bars_everything_is_a_fault_of_its_row(device: torch.device) -> None:
    logits, settings = peaked_logits(4, 3000, device), settings_of(MIXED[:4], device)
    mask = masks([3, 0, 1], 3000, 0.5, device)
    mask.bits[0] = mask.bits[2] = 0
    out, faults = torch.zeros((2, 4), dtype=torch.int32, device=device)
    kernel.sample(logits, settings, out, faults, Workspace.allocate(4, 3000, device), mask)
    assert faults.tolist() == [Fault.NONE, Fault.EMPTY, Fault.NONE, Fault.EMPTY]


def test_out_may_be_int64_and_refusals_are_typed(device: torch.device) -> None:
    logits, settings = peaked_logits(2, 900, device), settings_of((GREEDY, USUAL), device)
    out = torch.full((2,), -1, dtype=torch.int64, device=device)
    faults = torch.zeros(2, dtype=torch.int32, device=device)
    kernel.sample(logits, settings, out, faults, Workspace.allocate(2, 900, device))
    assert out.tolist() == draw(logits, settings)[0]
    with pytest.raises(ValueError, match="exceed"):
        kernel.sample(logits, settings, out, faults, Workspace.allocate(1, 900, device))
    with pytest.raises(ValueError, match="vocabulary"):
        kernel.sample(logits, settings, out, faults, Workspace.allocate(2, 901, device))
    with pytest.raises(ValueError, match="outside"):
        Workspace.allocate(1, 1 << 19, device)
