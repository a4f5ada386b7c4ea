"""Draws against the exact distribution, and that the judgement notices what it must.

`make bars-sampling` makes a million draws at each setting; here fewer are made, of the same
streams.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from antiphon_llm.messages import Sampling
from antiphon_llm.sampler.philox import NoiseClass

from bench import draw_statistics as statistics
from bench.draw_statistics import SETTINGS, Setting

DRAWS = 60_000
ALPHA = 1e-4
BY_NAME = {setting.name: setting for setting in SETTINGS}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_draws_follow_the_exact_distribution(setting: Setting) -> None:
    assert statistics.as_drawn(setting, 40)
    assert statistics.p_value(setting, DRAWS) > ALPHA


def test_there_are_twenty_settings_and_all_leave_a_choice() -> None:
    assert len(BY_NAME) == 20
    for setting in SETTINGS:
        assert np.count_nonzero(statistics.exact(setting)) > 1, setting.name


@pytest.mark.parametrize("name", ["plain 8", "all filters"])
def test_classes_choices_and_positions_are_independent(name: str) -> None:
    setting = BY_NAME[name]
    target = statistics.stream(setting, DRAWS)
    for other in (NoiseClass.DRAFT, NoiseClass.ACCEPT, NoiseClass.RESIDUAL):
        drafted = statistics.stream(setting, DRAWS, noise_class=other)
        assert statistics.joint_p_value(setting, target, drafted) > ALPHA
    assert statistics.joint_p_value(setting, target[:-1], target[1:]) > ALPHA
    assert statistics.joint_p_value(setting, target[:-3], target[3:]) > ALPHA
    assert (
        statistics.joint_p_value(setting, target, statistics.stream(setting, DRAWS, seed=12))
        > ALPHA
    )


def test_the_rare_are_drawn_as_often_as_they_should() -> None:
    assert statistics.tail_p_value(200_000) > ALPHA
    assert statistics.stray_rate(60, 248_320) == 0


# Planted faults: each must be noticed with no more draws than CI makes.


def test_a_reused_noise_class_is_noticed() -> None:
    setting = BY_NAME["plain 8"]
    target = statistics.stream(setting, DRAWS)
    assert statistics.joint_p_value(setting, target, target) == 0


def test_a_position_that_does_not_move_is_noticed() -> None:
    setting = BY_NAME["plain 8"]
    target = statistics.stream(setting, DRAWS)
    stuck = target[np.arange(len(target)) // 2 * 2]
    assert statistics.joint_p_value(setting, stuck[:-1:2], stuck[1::2]) == 0


@pytest.mark.parametrize(
    "name", ["top_k", "top_p", "min_p", "top_p on near-equal logits", "half impossible"]
)
def test_unfiltered_draws_are_noticed(name: str) -> None:
    def everything(scores: np.ndarray, given: Sampling) -> np.ndarray:
        return np.flatnonzero(np.isfinite(scores))

    assert statistics.p_value(BY_NAME[name], DRAWS, kept=everything) < ALPHA


@pytest.mark.parametrize(
    "name", ["top_k cuts a plateau", "ties alone", "top_p cuts a plateau", "top_p 0"]
)
def test_a_tie_that_is_split_is_noticed(name: str) -> None:
    def without_last(scores: np.ndarray, given: Sampling) -> np.ndarray:
        ids = statistics.filtered(scores, given)
        lowest = ids[scores[ids] == scores[ids].min()]
        return ids[ids != lowest[-1]]

    assert statistics.p_value(BY_NAME[name], DRAWS, kept=without_last) < ALPHA


def bits24(words: np.ndarray) -> np.ndarray:
    uniform = torch.from_numpy(((words >> 8).astype(np.float32) + 0.5) * 2.0**-24)
    return (-(-uniform.log()).log()).numpy()


def bits32_at_the_wrong_end(words: np.ndarray) -> np.ndarray:
    uniform = torch.from_numpy((words.astype(np.float32) + 0.5) * np.float32(2.0**-32))
    return (-(-uniform.log()).log()).numpy()


def bits23(words: np.ndarray) -> np.ndarray:
    uniform = torch.from_numpy(((words >> 9).astype(np.float32) + 0.5) * 2.0**-23)
    return (-(-uniform.log()).log()).numpy()


@pytest.mark.parametrize("noise", [bits24, bits23])
def test_a_coarse_tail_is_noticed(noise: statistics.Noise) -> None:
    assert statistics.tail_p_value(200_000, noise=noise) < ALPHA


@pytest.mark.parametrize("noise", [bits24, bits32_at_the_wrong_end])
def test_noise_without_bound_is_noticed(noise: statistics.Noise) -> None:
    """About one row in 70 and in 130 strays."""
    assert statistics.stray_rate(500, 248_320, noise=noise) > 0


@pytest.mark.parametrize("fault", [0.98, 1.02])
def test_a_wrong_temperature_is_noticed(fault: float) -> None:
    setting = BY_NAME["cold"]
    wrong = Setting("wrong", 64, fields={"temperature": 0.6 * fault})
    counts = np.bincount(statistics.stream(wrong, 4 * DRAWS), minlength=64)
    assert statistics.chi_square(counts, statistics.exact(setting) * 4 * DRAWS) < ALPHA
