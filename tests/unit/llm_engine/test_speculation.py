"""Drafting changes how many tokens a step yields, never which."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from antiphon_llm.messages import Cancel
from antiphon_llm.speculation.drafter import Drafter
from antiphon_llm.speculation.ngram import NgramDrafter

from .drafters import Adversary, Coin, Oracle

Make = Callable[[dict[str, list[int]]], Drafter]
DRAFTERS: dict[str, Make] = {
    "oracle": Oracle,
    "adversary": Adversary,
    "coin": Coin,
    "ngram": lambda answers: NgramDrafter(),
}
DEPTHS = (1, 2, 4, 7)


def requests(seed: int, count: int) -> dict[str, tuple[list[int], dict[str, Any]]]:
    """Prompts and fields: greedy and drawn, penalised, with stops, bounds and repetitive text."""
    chance = random.Random(seed)
    made = {}
    for number in range(count):
        piece = [chance.randrange(6) for _ in range(chance.randrange(2, 6))]
        prompt = piece * chance.randrange(1, 3) + [chance.randrange(60)]
        fields: dict[str, Any] = {"max_tokens": chance.choice((1, 2, 5, 10, 40, 40))}
        if chance.random() < 0.5:
            fields |= {"temperature": 1.5, "seed": chance.randrange(1 << 30), "top_p": 0.97}
        if chance.random() < 0.3:
            fields |= {"repetition_penalty": 1.3, "frequency_penalty": 0.4}
        if chance.random() < 0.4:
            fields["stop_token_ids"] = [chance.randrange(64) for _ in range(4)]
        if chance.random() < 0.2:
            fields["min_tokens"] = chance.randrange(1, fields["max_tokens"] + 1)
        if chance.random() < 0.4:
            fields["allowed_token_ids"] = chance.sample(range(60), 3)
        if chance.random() < 0.3:
            fields["draft_depth"] = chance.randrange(2)
        made[f"r{number}"] = (prompt, fields)
    return made


def run(engine: Any, traffic: dict[str, tuple[list[int], dict[str, Any]]]) -> None:
    for name, (prompt, fields) in traffic.items():
        engine.submit(name, prompt, **fields)
        if len(engine.loop.live) > 12:
            engine.step()
    engine.run()


@pytest.fixture(scope="module")
def plain(engine_type) -> Callable[[int, int], Any]:
    """Plain runs, each made once."""
    made: dict[tuple[int, int], Any] = {}

    def plain_run(seed: int, count: int) -> Any:
        if (seed, count) not in made:
            engine = made[seed, count] = engine_type(queue_limit=100, draft_depth=1)
            run(engine, requests(seed, count))
        return made[seed, count]

    return plain_run


@pytest.fixture(scope="module")
def engine_type() -> type:
    from .conftest import Engine

    return Engine


@pytest.mark.parametrize(
    ("drafter", "depth", "overlap"),
    [
        (drafter, depth, overlap)
        for drafter in DRAFTERS
        for depth in DEPTHS
        for overlap in ((0, 1) if drafter == "coin" else (depth % 2,))
    ],
)
def test_the_text_is_that_of_the_plain_run(
    engine_type, plain, drafter: str, depth: int, overlap: int
) -> None:
    reference = plain(1, 80)
    engine = engine_type(
        drafter=DRAFTERS[drafter](reference.outputs), draft_depth=depth, overlap_depth=overlap,
        entries=22 + 2 * depth, max_rows=6, step_tokens=64, prefix_cache=1, prefill_chunk=5,
        queue_limit=100,
    )  # fmt: skip
    run(engine, requests(1, 80))
    assert engine.outputs == reference.outputs
    for name, finish in engine.finished.items():
        assert finish.reason == reference.finished[name].reason
        assert finish.output_tokens == len(engine.outputs[name])
    assert engine.scheduler.preemptions > 0
    assert engine.allocator.used == engine.scheduler.holdings.cached
    telemetry = engine.speculation.telemetry
    assert telemetry.proposed > 20
    if drafter == "oracle":
        assert telemetry.accepted > 0.8 * telemetry.proposed
    if drafter == "adversary":
        assert telemetry.accepted == 0


def test_random_cancels(engine_type, plain) -> None:
    reference = plain(2, 60)
    engine = engine_type(
        drafter=Coin(reference.outputs), draft_depth=4, entries=24, overlap_depth=1,
        prefix_cache=1, step_tokens=48, queue_limit=100,
    )  # fmt: skip
    chance = random.Random(2)
    cancelled = set()
    for name, (prompt, fields) in requests(2, 60).items():
        engine.submit(name, prompt, **fields)
        if chance.random() < 0.3:
            cancelled.add(name)
        for _ in range(chance.randrange(4)):
            engine.step()
        for victim in sorted(cancelled - set(engine.finished)):
            if chance.random() < 0.4:
                engine.send(Cancel(victim))
    engine.run()
    for name, tokens in engine.outputs.items():
        assert tokens == reference.outputs[name][: len(tokens)]
        if engine.finished[name].reason != "cancelled":
            assert tokens == reference.outputs[name]
    assert engine.allocator.used == engine.scheduler.holdings.cached


def test_a_deeper_draft_than_the_engine_s_is_refused(engine_type) -> None:
    engine = engine_type(drafter=Oracle({}), draft_depth=3)
    engine.submit("deep", [1, 2], draft_depth=4)
    engine.submit("fits", [1, 2], draft_depth=3)
    engine.run()
    finish = engine.finished["deep"]
    assert (finish.reason, finish.error_reason) == ("error", "INVALID_VALUE")
    assert "draft_depth must be at most 3" in finish.error
    assert engine.finished["fits"].reason == "length"
