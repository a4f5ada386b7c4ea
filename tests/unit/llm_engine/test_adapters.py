"""Adapters on a real, tiny model: against merged weights, in any company, in rotating slots."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from support.adapters import ALL, merge, shapes_of
from transformers import LlamaConfig

from .adapting import FAMILIES, KINDS, LAYERS, SHAPE, models, served

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return models(tmp_path_factory.mktemp("llama"), "llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_merged_weights(
    tmp_path: Path, endpoint_type: Any, family: str
) -> None:
    """Prompt in one chunk, in pieces and decoded, against transformers in fp32."""
    base, adapters = models(tmp_path, family)
    engine = served(base, adapters, endpoint_type)
    prompt = [(7 * place + 3) % 90 for place in range(29)]
    for name in KINDS:
        assert engine.load(name).error == ""
        engine.submit(f"{name} scored", prompt, name, prompt_logprobs=0, max_tokens=1)
        engine.submit(f"{name} drawn", prompt[:11], name)
    engine.submit("base", prompt[:11])
    engine.run()
    for name in KINDS:
        oracle = FAMILIES[family][1].from_pretrained(base, dtype=torch.float32)
        merge(oracle, adapters / name)
        with torch.no_grad():
            logprobs = oracle(torch.tensor([prompt])).logits[0].log_softmax(-1)
            text = torch.tensor([prompt[:11] + engine.tokens[f"{name} drawn"]])
            drawn = oracle(text).logits[0].log_softmax(-1)
        wanted = [float(logprobs[place, prompt[place + 1]]) for place in range(28)]
        found = [item.logprobs[0] for item in engine.prompt[f"{name} scored"][1:]]
        assert found == pytest.approx(wanted, abs=TOLERANCE)
        assert drawn[10:-1].argmax(-1).tolist() == engine.tokens[f"{name} drawn"]
        best = drawn[10:-1].max(-1).values.tolist()
        assert engine.logprobs[f"{name} drawn"] == pytest.approx(best, abs=TOLERANCE)
    firsts = {engine.logprobs[name][0] for name in ("base", *(f"{kind} drawn" for kind in KINDS))}
    assert len(firsts) == len(KINDS) + 1


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"overlap_depth": 1},
        {"drafter": "ngram", "draft_depth": 3, "draft_valve": "off", "draft_adaptive": False},
    ],
    ids=["plain", "overlapped", "drafted"],
)
def test_company_changes_no_bit(
    llama: tuple[Path, Path], endpoint_type: Any, fields: dict[str, Any]
) -> None:
    """Random requests of random adapters in one engine, and each alone in another."""
    chance = random.Random(7)
    names = ["", *KINDS]
    requests = []
    for number in range(60):
        begin = [[7 * n % 90 + k for n in range(24)] for k in range(2)][number % 2]
        prompt = begin[: chance.randint(1, 24)] + [
            chance.randrange(90) for _ in range(chance.randint(1, 20))
        ]
        sampling = {"temperature": chance.choice((0.0, 1.0)), "seed": number,
                    "max_tokens": chance.randint(1, 12)}  # fmt: skip
        requests.append((f"r{number}", prompt, chance.choice(names), sampling))
    together = served(*llama, endpoint_type, **fields)
    alone = served(*llama, endpoint_type, prefix_cache=False)
    for name in KINDS:
        assert not together.load(name).error
        assert not alone.load(name).error
    for request_id, prompt, adapter, sampling in requests:
        together.submit(request_id, prompt, adapter, **sampling)
        if chance.random() < 0.5:
            together.step()
    together.run()
    for request_id, prompt, adapter, sampling in requests:
        alone.submit(request_id, prompt, adapter, **sampling)
        alone.run()
    assert not [end.error for end in together.ends.values() if end.error]
    assert together.tokens == alone.tokens
    assert together.logprobs == alone.logprobs
    replayed = together.loop.runner._model.programs.replays
    assert replayed > 5


def test_the_models_own_rows_are_those_of_an_engine_without_adapters(
    llama: tuple[Path, Path], endpoint_type: Any
) -> None:
    mixed = served(*llama, endpoint_type)
    plain = served(llama[0], None, endpoint_type)
    mixed.load("all")
    for number in range(6):
        prompt = [(5 * number + place) % 90 for place in range(9 + number)]
        mixed.submit(f"own {number}", prompt, temperature=0.8, seed=number)
        plain.submit(f"own {number}", prompt, temperature=0.8, seed=number)
        mixed.submit(f"other {number}", prompt, "all")
    mixed.run()
    plain.run()
    for name, logprobs in plain.logprobs.items():
        assert mixed.logprobs[name] == logprobs
        assert mixed.tokens[name] == plain.tokens[name]


@pytest.mark.parametrize("depth", [0, 1])
def test_slots_are_given_to_others_under_traffic(
    llama: tuple[Path, Path], endpoint_type: Any, depth: int
) -> None:
    """Two slots serve four adapters in turn, while the model's own rows go on; recorded steps
    read what a slot holds now."""
    rotating = served(*llama, endpoint_type, adapter_slots=2, overlap_depth=depth)
    steady = served(*llama, endpoint_type)
    for name in KINDS:
        steady.load(name)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    for turn, name in enumerate([*KINDS, *reversed(KINDS)] * 2):
        rotating.submit(f"own {turn}", [turn, *prompt], max_tokens=40)
        assert rotating.load("kept", name).error == ""
        for row in range(3):
            fields = {"temperature": 1.0, "seed": turn, "max_tokens": 6}
            rotating.submit(f"{turn}.{row}", [*prompt, row], "kept", **fields)
            steady.submit(f"{turn}.{row}", [*prompt, row], name, **fields)
        while not all(f"{turn}.{row}" in rotating.ends for row in range(3)):
            rotating.step()
        assert rotating.unload("kept").error == ""
    rotating.run()
    steady.run()
    for request_id, logprobs in steady.logprobs.items():
        assert rotating.logprobs[request_id] == logprobs, request_id


def test_an_adapter_in_use_stays(llama: tuple[Path, Path], endpoint_type: Any) -> None:
    engine = served(*llama, endpoint_type, max_rows=1)
    engine.load("all")
    engine.submit("runs", [1, 2, 3], "all")
    engine.submit("waits", [1, 2, 3], "all")
    refused = engine.unload("all")
    assert (refused.error_reason, refused.field) == ("IN_USE", "name")
    assert "used by 2 live requests" in refused.error
    engine.run()
    assert engine.unload("all").error == ""
    engine.submit("late", [1, 2, 3], "all")
    engine.run()
    assert engine.ends["late"].error_reason == "ADAPTER_NOT_FOUND"
    assert engine.unload("all").error_reason == "ADAPTER_NOT_FOUND"


def test_nothing_cached_for_one_adapter_serves_another(
    llama: tuple[Path, Path], endpoint_type: Any
) -> None:
    """Not for the model itself, and not for another adapter that has the name later."""
    engine = served(*llama, endpoint_type)
    prompt = [(11 * place + 5) % 90 for place in range(33)]
    engine.load("it", "all")
    found: dict[str, list[int]] = {}
    for turn, (adapter, cached) in enumerate((("", 0), ("it", 0), ("it", 32), ("", 32))):
        engine.submit(f"{turn}", prompt, adapter)
        engine.run()
        assert engine.ends[f"{turn}"].cached_tokens == cached
        assert found.setdefault(adapter, engine.tokens[f"{turn}"]) == engine.tokens[f"{turn}"]
    engine.unload("it")
    engine.load("it", "attention")
    engine.submit("renewed", prompt, "it")
    engine.run()
    assert engine.ends["renewed"].cached_tokens == 0
    assert engine.tokens["renewed"] != found["it"]


def test_tenants_have_names_of_their_own(llama: tuple[Path, Path], endpoint_type: Any) -> None:
    engine = served(*llama, endpoint_type)
    assert not engine.load("x", "all", tenant="red").error
    assert not engine.load("x", "attention", tenant="blue").error
    assert not engine.load("everybody", "rescaled", shared=True).error
    assert engine.load("x", "half", tenant="red").error_reason == "ALREADY_EXISTS"
    for tenant in ("red", "blue", "green"):
        for adapter in ("x", "everybody"):
            engine.submit(f"{tenant} {adapter}", [5, 6, 7, 8], adapter, tenant=tenant)
    engine.run()
    assert engine.ends["green x"].error_reason == "ADAPTER_NOT_FOUND"
    assert engine.tokens["red x"] != engine.tokens["blue x"]
    same = {tuple(engine.tokens[f"{tenant} everybody"]) for tenant in ("red", "blue", "green")}
    assert len(same) == 1
    assert engine.unload("x", tenant="green").error_reason == "ADAPTER_NOT_FOUND"
    assert engine.unload("everybody", tenant="red").error_reason == "ADAPTER_NOT_FOUND"
    assert not engine.unload("everybody", shared=True).error


def test_slots_and_bytes_are_bounded(llama: tuple[Path, Path], endpoint_type: Any) -> None:
    engine = served(*llama, endpoint_type, adapter_slots=2)
    engine.load("all")
    engine.load("half")
    full = engine.load("attention")
    assert (full.error_reason, full.limit, full.observed) == ("SLOTS_FULL", 2, 2)
    engine.unload("half")
    assert not engine.load("attention").error
    size = sum(i + o for i, o in shapes_of(LlamaConfig(**SHAPE)).values()) * 8 * LAYERS * 4
    tight = served(*llama, endpoint_type, adapter_bytes=size + 1000)
    assert tight.load("all").adapter.nbytes == size
    assert tight.load("attention").error_reason == "MEMORY_PRESSURE"
    assert tight.load("rescaled").error_reason == "TOO_LARGE"
    gauges = tight.loop._gauges()
    assert (gauges.adapters, gauges.adapter_bytes) == (1, size)
    assert gauges.counters["adapters: refused"] == 2


def test_an_engine_without_a_root_serves_none(llama: tuple[Path, Path], endpoint_type: Any) -> None:
    engine = served(llama[0], None, endpoint_type)
    assert engine.load("all").error_reason == "UNSUPPORTED_OPTION"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"adapter_slots": 0}, "adapter_slots must be 1 to 64, got 0"),
        ({"adapter_rank_max": 1000}, "adapter_rank_max must be 1 to 512"),
        ({"adapter_bytes": 0}, "adapter_bytes must be 1 or more"),
    ],
)
def test_wrong_settings_are_named(
    llama: tuple[Path, Path], endpoint_type: Any, fields: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        served(*llama, endpoint_type, **fields)


def test_a_root_that_is_none_is_refused(llama: tuple[Path, Path], endpoint_type: Any) -> None:
    with pytest.raises(ValueError, match=r"adapters_dir .* is no directory"):
        served(llama[0], llama[0] / "config.json", endpoint_type)
    with pytest.raises(ValueError, match=r"adapters_dir .*: No such file"):
        served(llama[0], llama[0] / "missing", endpoint_type)


def test_all_modules_are_those_that_adapters_change() -> None:
    from antiphon_llm.models.adapters import MODULES

    assert MODULES == ALL
