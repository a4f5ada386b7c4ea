"""The GPU bench end to end on the host with a tiny shape: what it runs, counts and judges."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import gpu_adapters, gpu_engine, gpu_speculation
from bench.random_qwen3 import QWEN3_0_6B, QWEN3_8B, Qwen3Shape

TINY = Qwen3Shape("tiny", 64, 96, 2, 4, 2, tied=True, head_dim=16, vocabulary=300)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sizes = {"PROMPT": 24, "NEW_TOKENS": 10, "LONG_PROMPT": 48, "LONG_COUNT": 3, "CONTEXT": 96}
    shapes = {"SHAPES": {"0.6b": TINY}, "SHORT_PROMPTS": (8, 16)}
    for name, value in {**shapes, **sizes}.items():
        monkeypatch.setattr(gpu_engine, name, value)
    # Products this small cost less than waking a second thread for them.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_every_figure_is_measured(small: None) -> None:
    options = gpu_engine.parse(
        [
            "--model",
            "0.6b",
            "--rows",
            "1",
            "2",
            "--sampling",
            "greedy",
            "--step-tokens",
            "64",
            "--device",
            "cpu",
        ]
    )
    raw = gpu_engine.measure(options)
    assert [(cell["rows"], cell["sampling"]) for cell in raw["cells"]] == [
        (1, "greedy"),
        (2, "greedy"),
    ]
    for cell in raw["cells"]:
        assert cell["steps"] >= 4 and cell["tpot"] > 0 and cell["replay"] > 0
        assert 0 < cell["floor"] < cell["tpot"]
    assert raw["cells"][0]["peer"] == 1.674 and raw["cells"][1]["peer"] is None
    assert raw["prefill"]["0.6b"] > 0 and raw["ttft"]["0.6b"] > 0
    assert [len(times) for times in raw["short_ttft"]["0.6b"].values()] == [2, 2]
    counters = raw["counters"]["0.6b"]
    assert counters["graph: replay"] > 0 and counters["prefill graph: replay"] > 0
    assert not [name for name in counters if name.startswith("graph: eager")]


@pytest.mark.slow
def test_speculation_is_measured_and_its_texts_are_equal(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    untied = replace(TINY, tied=False, vocabulary=4000)
    sizes = {"SHAPES": {"8b": untied}, "CONTEXT": 128, "PROMPT": 50, "NEW_TOKENS": 40}
    for name, value in sizes.items():
        monkeypatch.setattr(gpu_engine, name, value)
    options = gpu_speculation.parse(["--rows", "1", "3", "--step-tokens", "128", "--device", "cpu"])
    raw = gpu_speculation.measure(options)
    assert raw["text_tokens"] > 20
    copying = raw["copying"]
    assert copying["different_tokens"] == 0
    assert 0 < copying["accepted"] <= copying["proposed"]
    assert copying["speed_up_at_1.0"] > copying["speed_up_at_0.6"]
    assert raw["idle"]["proposed"] == 0
    assert raw["counters"]["draw: masked rows"] > 0
    for rows in (1, 3):
        assert raw[f"step_{rows}"]["filtered_masked"] > 0
        assert set(raw[f"draw_{rows}"]) == {
            f"{kind}{mask}" for kind in ("plain", "filtered") for mask in ("", "_half", "_sparse")
        }
    assert not [name for name in raw["counters"] if name.startswith("graph: eager")]


def test_every_bar_has_a_limit_no_laxer_than_the_peer() -> None:
    path = Path(gpu_engine.__file__).with_name("bars.toml")
    limits = tomllib.loads(path.read_text())["engine_gpu"]
    expected = set()
    for model, cells in gpu_engine.PEER_TPOT.items():
        key = model.replace(".", "_")
        for rows, peer in cells.items():
            for sampling in gpu_engine.SAMPLINGS:
                name = f"tpot_{key}_{rows}_{sampling}"
                expected.add(name)
                assert limits[name]["limit"] <= peer
        assert limits[f"ttft_{key}"]["limit"] <= gpu_engine.PEER_TTFT[model]
        assert limits[f"prefill_{key}"]["limit"] >= gpu_engine.PEER_PREFILL[model]
        expected |= {f"ttft_{key}", f"prefill_{key}"}
    assert set(limits) == expected


def test_shapes_have_the_published_sizes() -> None:
    for shape, billions in ((QWEN3_0_6B, 0.596), (QWEN3_8B, 8.19)):
        count = 0
        for size in shape.tensors().values():
            elements = 1
            for extent in size:
                elements *= extent
            count += elements
        assert count / 1e9 == pytest.approx(billions, abs=0.005)


def test_the_cost_of_adapters_is_measured_beside_the_same_rows_without(small: None) -> None:
    options = gpu_adapters.parse(
        ["--model", "0.6b", "--rows", "3", "--step-tokens", "64", "--device", "cpu"]
    )
    raw = gpu_adapters.measure(options)
    assert [cell["mix"] for cell in raw["cells"]] == list(gpu_adapters.MIXES)
    assert raw["cells"][0]["ratio"] == 1.0
    assert all(cell["tpot"] > 0 and cell["replay"] > 0 for cell in raw["cells"])
    assert [cell["matrices"] > 0 for cell in raw["cells"]] == [False, True, True, True]
    counters = raw["counters"]["0.6b all"]
    assert counters["graph: replay"] > 0 and "graph: eager, unexpected" not in counters
