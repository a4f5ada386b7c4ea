"""Steps in flight change when the host learns of a token, never which token it is."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from antiphon_llm.messages import Cancel, EmbedSubmit, TopLogprobs

REQUESTS = 1000
VOCABULARY = 64


def random_request(chance: random.Random) -> tuple[list[int], dict[str, Any]]:
    """A prompt and the fields of its submit: greedy and drawn, penalised, with stop ids."""
    prompt = [chance.randrange(4)] * 4 + [
        chance.randrange(60) for _ in range(chance.randrange(1, 12))
    ]
    fields: dict[str, Any] = {"max_tokens": chance.choice((1, 2, 5, 10, 20, 40))}
    if chance.random() < 0.5:
        fields |= {"temperature": 1.5, "seed": chance.randrange(1 << 30), "top_p": 0.97}
    if chance.random() < 0.3:
        fields |= {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2}
    if chance.random() < 0.5:
        fields["stop_token_ids"] = [chance.randrange(VOCABULARY) for _ in range(4)]
    if chance.random() < 0.2:
        fields["min_tokens"] = chance.randrange(1, fields["max_tokens"] + 1)
    return prompt, fields


def run_traffic(engine, seed: int, count: int) -> tuple[dict[str, Any], set[str]]:
    """Feeds random requests while stepping, cancels some; returns them and the cancelled ids."""
    chance = random.Random(seed)
    requests: dict[str, Any] = {}
    cancelled: set[str] = set()
    while len(requests) < count:
        room = engine.scheduler.refusal(True) is None and len(engine.loop.live) < 28
        for _ in range(min(chance.randrange(4), count - len(requests)) if room else 0):
            name = f"r{len(requests)}"
            requests[name] = random_request(random.Random(f"{seed} {name}"))
            prompt, fields = requests[name]
            engine.submit(name, prompt, **fields)
        if requests and chance.random() < 0.08:
            victim = f"r{chance.randrange(max(0, len(requests) - 12), len(requests))}"
            engine.send(Cancel(victim))
            cancelled.add(victim)
        engine.step()
    engine.run()
    assert sorted(engine.finished) == sorted(requests)
    return requests, cancelled


def test_depth_0_and_1_give_equal_text(engine_type) -> None:
    engines = [
        engine_type(entries=20, max_rows=6, step_tokens=32, overlap_depth=depth, prefix_cache=1)
        for depth in (0, 1)
    ]
    runs = [run_traffic(engine, 5, REQUESTS) for engine in engines]
    requests = runs[0][0]
    cancelled = runs[0][1] | runs[1][1]
    together, overlapped = engines
    for name, (_, fields) in requests.items():
        first, second = together.outputs.get(name, []), overlapped.outputs.get(name, [])
        shorter = min(len(first), len(second))
        assert first[:shorter] == second[:shorter], name
        if name not in cancelled:
            assert len(first) == len(second)
            assert together.finished[name].reason == overlapped.finished[name].reason
        for tokens in (first, second):
            assert len(tokens) <= fields["max_tokens"]
            stops = [t in fields.get("stop_token_ids", []) for t in tokens]
            assert not any(stops[fields.get("min_tokens", 1) - 1 : -1]), "text behind a stop"
    for engine in engines:
        assert engine.scheduler.preemptions > 50
        assert engine.scheduler.cached_tokens > 1000
        assert engine.allocator.used == engine.scheduler.holdings.cached
    reasons = {finish.reason for finish in overlapped.finished.values()}
    assert reasons == {"stop", "length", "cancelled"}
    assert len(cancelled) < REQUESTS / 2


def test_text_among_others_is_the_text_alone(engine_type) -> None:
    engine = engine_type(entries=22, overlap_depth=1)
    requests, cancelled = run_traffic(engine, 6, 80)
    for name, (prompt, fields) in requests.items():
        if name in cancelled:
            continue
        alone = engine_type()
        alone.submit(name, prompt, **fields)
        alone.run()
        assert engine.outputs[name] == alone.outputs[name]


class TestOverlap:
    def test_a_step_is_launched_before_the_tokens_of_the_last_are_read(self, engine_type) -> None:
        engine = engine_type(overlap_depth=1)
        engine.submit("a", [1, 2, 3], max_tokens=8)
        launched: list[int] = []
        launch = engine.runner.launch

        def spy(plan):
            launched.append(len(engine.outputs.get("a", [])))
            return launch(plan)

        engine.runner.launch = spy
        engine.run()
        # The prompt's token is read at once; from then on each launch is one token ahead.
        assert launched == [0, 1, 1, 2, 3, 4, 5, 6]
        assert len(engine.outputs["a"]) == 8

    def test_the_loop_works_while_a_step_runs(self, engine_type) -> None:
        engine = engine_type(overlap_depth=1)
        engine.submit("a", [1, 2, 3], max_tokens=8)
        engine.step()
        gate = threading.Event()
        forward = engine.model.forward
        engine.model.forward = lambda *args, **named: (gate.wait(30), forward(*args, **named))[1]
        engine.step()  # Returns although the step that it launched cannot move.
        assert len(engine.outputs["a"]) == 1
        gate.set()
        engine.run()
        assert len(engine.outputs["a"]) == 8

    @pytest.mark.parametrize("fields", [{"stop_token_ids": list(range(64))}, {"max_tokens": 1}])
    def test_nothing_follows_the_end(self, engine_type, fields: dict[str, Any]) -> None:
        engine = engine_type(overlap_depth=1)
        engine.submit("a", [1, 2, 3], **fields)
        engine.run()
        assert len(engine.outputs["a"]) == 1
        assert engine.allocator.used == engine.scheduler.holdings.cached

    def test_a_cancelled_row_s_entries_are_free_when_its_step_has_settled(
        self, engine_type
    ) -> None:
        engine = engine_type(overlap_depth=1)
        engine.submit("a", range(10), max_tokens=30)
        for _ in range(3):
            engine.step()
        assert engine.allocator.used > 0
        engine.send(Cancel("a"))
        engine.step()
        assert engine.finished["a"].reason == "cancelled"
        engine.step()
        assert engine.allocator.used == engine.scheduler.holdings.cached

    def test_scores_and_vectors(self, engine_type) -> None:
        def collected(depth: int) -> tuple[list[TopLogprobs], list[float]]:
            engine = engine_type(overlap_depth=depth, entries=17, prefill_chunk=3)
            for n in range(3):
                engine.submit(f"other-{n}", range(n + 10), max_tokens=20)
            engine.submit("a", range(3, 25), prompt_logprobs=2, max_tokens=20)
            engine.send(EmbedSubmit("e", list(range(20)), "mean"))
            engine.run()
            assert engine.scheduler.preemptions > 0
            vector = next(m.vector for m in engine.other if getattr(m, "request_id", "") == "e")
            return engine.prompt_logprobs["a"], vector

        assert collected(0) == collected(1)
