"""Adapters on the device runner: on the host equal to the CPU runner, on a GPU to each alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from antiphon_llm.engine.cuda.device import CudaDevice, HostDevice
from antiphon_llm.engine.cuda.graphs import DecodeGraphs, DecodeShape, adapter_buckets

from .adapting import KINDS, Served, models, served, served_on

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return models(tmp_path_factory.mktemp("llama"), "llama")


def traffic(count: int) -> list[tuple[str, list[int], str, dict[str, Any]]]:
    """Random requests of random adapters, half of them greedy."""
    chance = random.Random(count)
    requests = []
    for number in range(count):
        begin = [[7 * n % 90 + k for n in range(24)] for k in range(2)][number % 2]
        prompt = begin[: chance.randint(1, 24)] + [
            chance.randrange(90) for _ in range(chance.randint(1, 20))
        ]
        sampling = {"temperature": chance.choice((0.0, 1.0)), "seed": number,
                    "max_tokens": chance.randint(1, 12)}  # fmt: skip
        requests.append((f"r{number}", prompt, chance.choice(["", *KINDS]), sampling))
    return requests


def feed(engine: Served, count: int, *, alone: bool) -> None:
    """Loads every adapter and serves the traffic, one request after another or together."""
    chance = random.Random(1)
    for name in KINDS:
        assert not engine.load(name).error
    for request_id, prompt, adapter, sampling in traffic(count):
        engine.submit(request_id, prompt, adapter, **sampling)
        if alone:
            engine.run()
        elif chance.random() < 0.5:
            engine.step()
    engine.run()
    assert not [end.error for end in engine.ends.values() if end.error]


@pytest.mark.parametrize(
    "fields",
    [
        {"overlap_depth": 1},
        {"overlap_depth": 0},
        {"drafter": "ngram", "draft_depth": 3, "draft_valve": "off", "draft_adaptive": False},
    ],
    ids=["overlapped", "plain", "drafted"],
)
def test_tokens_are_those_of_the_cpu_runner(
    llama: tuple[Path, Path], endpoint_type: Any, fields: dict[str, Any]
) -> None:
    device = served_on(HostDevice(), *llama, endpoint_type, **fields)
    host = served(*llama, endpoint_type)
    feed(device, 40, alone=False)
    feed(host, 40, alone=False)
    assert device.tokens == host.tokens


def test_recorded_steps_stage_each_rows_adapter(
    llama: tuple[Path, Path], endpoint_type: Any
) -> None:
    """In bf16 the host's products depend on the padding, so a token in many may differ; with
    other adapters than its own hardly a request would be the same."""
    fields = {"dtype": "bfloat16", "overlap_depth": 1}
    recorded = served_on(HostDevice(), *llama, endpoint_type, **fields)
    eager = served_on(HostDevice(), *llama, endpoint_type, graphs="off", **fields)
    feed(recorded, 16, alone=False)
    feed(eager, 16, alone=False)
    same = sum(recorded.tokens[name] == tokens for name, tokens in eager.tokens.items())
    assert same >= 14
    counters = recorded.loop.runner.counters
    assert counters["graph: replay"] > 8
    assert counters["prefill graph: eager, adapters"] > 2
    assert "graph: eager, unexpected" not in counters


def test_slots_change_hands(llama: tuple[Path, Path], endpoint_type: Any) -> None:
    device = served_on(HostDevice(), *llama, endpoint_type, adapter_slots=2, overlap_depth=1)
    rotate(device, served(*llama, endpoint_type))


def rotate(rotating: Served, steady: Served) -> None:
    """One name has one adapter after another, beside the model's own rows."""
    for name in KINDS:
        steady.load(name)
    for turn, name in enumerate([*KINDS, *reversed(KINDS)] * 2):
        rotating.submit(f"own {turn}", [turn, *PROMPT], max_tokens=40)
        assert rotating.load("kept", name).error == ""
        for row in range(3):
            fields = {"temperature": 1.0, "seed": turn, "max_tokens": 6}
            rotating.submit(f"{turn}.{row}", [*PROMPT, row], "kept", **fields)
            steady.submit(f"{turn}.{row}", [*PROMPT, row], name, **fields)
        while not all(f"{turn}.{row}" in rotating.ends for row in range(3)):
            rotating.step()
        assert rotating.unload("kept").error == ""
    rotating.run()
    steady.run()
    for request_id, tokens in steady.tokens.items():
        assert rotating.tokens[request_id] == tokens, request_id


@pytest.mark.parametrize(
    ("slots", "buckets"),
    [(0, [0]), (1, [0, 1]), (2, [0, 1, 2]), (8, [0, 1, 2, 4, 8]), (9, [0, 1, 2, 4, 8, 16])],
)
def test_buckets_of_active_adapters(slots: int, buckets: list[int]) -> None:
    assert adapter_buckets(slots) == buckets


def test_a_step_runs_at_the_next_bucket() -> None:
    graphs = DecodeGraphs(HostDevice(), rows_max=4, enabled=True, debug=False, adapter_slots=8)
    graphs.record(lambda shape: lambda: None, lambda shape: {})
    for active, bucket in ((0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (8, 8)):
        assert graphs.route(3, adapters=active) == DecodeShape(3, 1, bucket)
    assert graphs.route(9, adapters=3) == DecodeShape(9, 1, 4)
    assert not graphs.recordings.refused


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_company_changes_no_token_on_a_gpu(
    llama: tuple[Path, Path], endpoint_type: Any, dtype: str
) -> None:
    """Recorded steps of mixed adapters against each request alone, on the same device."""
    fields = {"dtype": dtype, "overlap_depth": 1, "prefix_cache": False, "max_rows": 6}
    together = served_on(CudaDevice(), *llama, endpoint_type, **fields)
    alone = served_on(CudaDevice(), *llama, endpoint_type, **fields)
    feed(together, 60, alone=False)
    feed(alone, 60, alone=True)
    assert not together.loop.runner.graphs_refused
    same = sum(together.tokens[name] == tokens for name, tokens in alone.tokens.items())
    assert same == len(alone.tokens)


@pytest.mark.gpu
def test_slots_change_hands_under_replay_on_a_gpu(
    llama: tuple[Path, Path], endpoint_type: Any
) -> None:
    rotating = served_on(CudaDevice(), *llama, endpoint_type, adapter_slots=2, overlap_depth=1)
    rotate(rotating, served(*llama, endpoint_type))
