"""The loop over a fake model that reads its own pages: what a front sees."""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Callable, Sequence

import pytest
from antiphon_llm.engine.intake import Tombstones
from antiphon_llm.engine.request import Request
from antiphon_llm.messages import (
    Cancel,
    Embedding,
    EmbedSubmit,
    Gauges,
    Shutdown,
)

Reference = Callable[[Sequence[int], int], list[int]]
END = 63
CONTEXT = 64


def test_greedy_output_is_the_model_s(engine_type, greedy_reference: Reference) -> None:
    engine = engine_type()
    engine.submit("a", range(1, 20), max_tokens=12)
    engine.run()
    assert engine.outputs["a"] == greedy_reference(range(1, 20), 12)
    finish = engine.finished["a"]
    assert (finish.reason, finish.prompt_tokens, finish.output_tokens) == ("length", 19, 12)
    assert engine.admitted == ["a"]
    assert engine.allocator.used == 0


def test_a_request_s_time_is_told_by_phase(engine_type, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of one step has a prefill too: from the plan that took it to its first token."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    engine = engine_type()
    engine.submit("a", range(1, 20), max_tokens=3)
    engine.run()
    finish = engine.finished["a"]
    assert finish.queue_seconds > 0 and finish.prefill_seconds > 0 and finish.decode_seconds > 0


def test_many_requests_with_preemption_each_get_their_own_text(
    engine_type, greedy_reference: Reference
) -> None:
    engine = engine_type(entries=17, context_limit=64)
    chance = random.Random(4)
    prompts = {f"r{n}": [chance.randrange(60) for _ in range(chance.randrange(1, 30))]
               for n in range(12)}  # fmt: skip
    for n, (name, prompt) in enumerate(prompts.items()):
        engine.submit(name, prompt, max_tokens=20, interactive=n % 3 > 0)
    engine.run()
    assert engine.scheduler.preemptions > 0
    for name, prompt in prompts.items():
        assert engine.outputs[name] == greedy_reference(prompt, 20)
        assert engine.admitted.count(name) == 1
    assert engine.allocator.used == 0


def test_the_same_seed_gives_the_same_tokens_alone_and_in_company(engine_type) -> None:
    def outputs(company: int) -> list[int]:
        engine = engine_type(max_rows=8, step_tokens=32, entries=140)
        for n in range(company):
            engine.submit(f"other-{n}", [n, n + 1] * (n + 1), temperature=1.0, seed=n)
        engine.submit("mine", [5, 6, 7], temperature=1.0, top_p=0.95, seed=42, max_tokens=30)
        engine.run()
        return engine.outputs["mine"]

    alone = outputs(0)
    assert outputs(7) == alone
    assert outputs(3) == alone
    assert len(set(alone)) > 5


def test_choices_of_one_seed_differ(engine_type) -> None:
    engine = engine_type()
    for choice in range(3):
        engine.submit(f"c{choice}", [1, 2], temperature=2.0, seed=7, choice=choice, max_tokens=20)
    engine.run()
    assert len({tuple(tokens) for tokens in engine.outputs.values()}) == 3


@pytest.mark.parametrize("depth", [0, 1])
def test_the_smallest_pool_serves_a_request_of_the_whole_context(
    engine_type, greedy_reference: Reference, depth: int
) -> None:
    """The floor is the context's entries and the null one, which ``entries`` does not count."""
    engine = engine_type(entries=16, context_limit=64, overlap_depth=depth, prefix_cache=1)
    prompts = {"first": [1, 2, 3], "second": list(range(50))}
    for name, prompt in prompts.items():
        engine.submit(name, prompt, max_tokens=100)
    engine.run()
    for name, prompt in prompts.items():
        assert engine.finished[name].reason == "context"
        assert engine.outputs[name] == greedy_reference(prompt, 64 - len(prompt))


class TestEnds:
    def test_stop_id(self, engine_type, greedy_reference: Reference) -> None:
        expected = greedy_reference([1, 2, 3], 8)
        engine = engine_type()
        engine.submit("a", [1, 2, 3], stop_token_ids=[expected[4]])
        engine.run()
        first = expected.index(expected[4])
        assert engine.outputs["a"] == expected[: first + 1]
        finish = engine.finished["a"]
        assert (finish.reason, finish.stop_token) == ("stop", expected[4])

    def test_end_of_text_and_ignoring_it(self, engine_type) -> None:
        engine = engine_type()
        engine.submit("stops", [1], logit_bias={END: 100.0})
        engine.submit("ignores", [1], logit_bias={END: 100.0}, ignore_eos=True)
        engine.submit("least", [1], logit_bias={END: 100.0}, min_tokens=3)
        engine.run()
        assert engine.outputs["stops"] == [END]
        assert engine.finished["stops"].stop_token == END
        assert engine.outputs["ignores"] == [END] * 8
        assert len(engine.outputs["least"]) == 4 and engine.outputs["least"][-1] == END

    def test_context_limit(self, engine_type, greedy_reference: Reference) -> None:
        engine = engine_type()
        engine.submit("a", [1] * 60, max_tokens=100)
        engine.submit("edge", [2] * 63, max_tokens=100)
        engine.run()
        assert engine.outputs["a"] == greedy_reference([1] * 60, 4)
        assert len(engine.outputs["edge"]) == 1
        assert {finish.reason for finish in engine.finished.values()} == {"context"}

    def test_deadline_before_and_during(self, engine_type) -> None:
        engine = engine_type()
        engine.submit("late", [1, 2], deadline=time.time() - 1)
        engine.submit("soon", [1, 2], deadline=time.time() + 0.05, max_tokens=60)
        engine.step()
        assert engine.finished["late"].reason == "deadline"
        assert "late" not in engine.outputs
        time.sleep(0.06)
        engine.step()
        assert engine.finished["soon"].reason == "deadline"
        assert engine.allocator.used == 0

    def test_finished_requests_are_not_kept_for_their_deadline(self, engine_type) -> None:
        engine = engine_type()
        for n in range(300):
            engine.submit(f"r{n}", [1], max_tokens=1, deadline=time.time() + 600)
            engine.run()
        gc.collect()
        assert sum(type(found) is Request for found in gc.get_objects()) < 100


class TestCancel:
    @pytest.mark.parametrize("steps", [0, 1, 2, 4])
    def test_frees_at_the_next_step_in_any_state(self, engine_type, steps: int) -> None:
        engine = engine_type()
        engine.submit("a", range(20), max_tokens=30)
        engine.submit("b", range(20), max_tokens=6)
        for _ in range(steps):
            engine.step()
        engine.send(Cancel("a"))
        engine.step()
        assert engine.finished["a"].reason == "cancelled"
        engine.run()
        assert engine.finished["b"].reason == "length"
        assert engine.allocator.used == 0

    def test_before_its_submit(self, engine_type) -> None:
        engine = engine_type()
        engine.send(Cancel("a"))
        engine.step()
        engine.submit("a", [1, 2])
        engine.step()
        assert engine.finished["a"].reason == "cancelled"
        assert "a" not in engine.outputs

    def test_after_its_end_and_twice(self, engine_type) -> None:
        engine = engine_type()
        engine.submit("a", [1, 2], max_tokens=1)
        engine.run()
        engine.send(Cancel("a"))
        engine.send(Cancel("a"))
        engine.step()
        assert engine.finished["a"].reason == "length"

    def test_tombstones_expire_and_are_bounded(self) -> None:
        now = [0.0]
        stones = Tombstones(seconds=60, limit=3, clock=lambda: now[0])
        for n in range(5):
            stones.leave(f"r{n}")
        assert len(stones) == 3
        assert not stones.take("r1") and stones.take("r2") and not stones.take("r2")
        now[0] = 60.0
        assert not stones.take("r3")
        stones.leave("new")
        assert len(stones) == 1


class TestRefusals:
    @pytest.mark.parametrize(
        ("prompt", "fields", "reason", "words"),
        [
            ([], {}, "EMPTY_PROMPT", ["no token"]),
            ([1] * 64, {}, "CONTEXT_LENGTH_EXCEEDED", ["limit 64", "observed 64"]),
            ([1, 64], {}, "INVALID_VALUE", ["prompt_ids", "64", "0 to 63"]),
            ([-1], {}, "INVALID_VALUE", ["prompt_ids", "-1"]),
            ([1], {"max_tokens": 0}, "INVALID_VALUE", ["max_tokens"]),
            ([1], {"logit_bias": {70: 1.0}}, "INVALID_VALUE", ["logit_bias", "70"]),
            ([1], {"adapter": "blue"}, "ADAPTER_NOT_FOUND", ["blue"]),
        ],
    )
    def test_bad_submits(self, engine_type, prompt, fields, reason, words) -> None:
        engine = engine_type()
        engine.submit("bad", prompt, **fields)
        engine.submit("good", [1, 2])
        engine.run()
        finish = engine.finished["bad"]
        assert (finish.reason, finish.error_reason) == ("error", reason)
        assert all(word in finish.error for word in words), finish.error
        assert engine.finished["good"].reason == "length"

    def test_a_full_queue_names_its_limit_and_when_to_retry(self, engine_type) -> None:
        engine = engine_type(queue_limit=2, max_rows=1)
        for n in range(4):
            engine.submit(f"r{n}", [1, 2])
        engine.step()
        refused = [finish for finish in engine.finished.values() if finish.reason == "error"]
        assert {finish.error_reason for finish in refused} == {"QUEUE_FULL"}
        assert len(refused) == 2 and all(finish.retry_after > 0 for finish in refused)
        engine.run()
        assert len(engine.finished) == 4

    def test_an_id_that_is_live(self, engine_type) -> None:
        engine = engine_type()
        engine.submit("a", [1, 2], max_tokens=30)
        engine.step()
        engine.submit("a", [1, 2])
        engine.loop.take_messages()
        finish = engine.loop.outbox.flush().finished[-1]
        assert finish.error_reason == "ALREADY_EXISTS"

    def test_a_defect_while_admitting_ends_that_request_only(self, engine_type) -> None:
        engine = engine_type()
        engine.submit("odd", [1], logit_bias={2: "much"})
        engine.submit("good", [1, 2])
        engine.run()
        assert engine.finished["odd"].error_reason == "INTERNAL"
        assert engine.finished["good"].reason == "length"

    @pytest.mark.parametrize(
        ("value", "reason"), [(float("nan"), "NAN_LOGITS"), (float("-inf"), "NO_VALID_TOKEN")]
    )
    def test_bad_logits_end_that_row_only(
        self, engine_type, greedy_reference: Reference, value: float, reason: str
    ) -> None:
        engine = engine_type()
        engine.model.poisoned[40] = value
        engine.submit("bad", [1, 40])
        engine.submit("good", [1, 2], logit_bias={40: -100.0})
        engine.run()
        finish = engine.finished["bad"]
        assert (finish.reason, finish.error_reason) == ("error", reason)
        assert engine.outputs["good"] == greedy_reference([1, 2], 8)
        assert engine.allocator.used == 0


class TestLogprobs:
    def test_prompt_scores_are_the_same_whole_chunked_and_preempted(self, engine_type) -> None:
        def scores(company: int, **settings: int):
            engine = engine_type(**settings)
            collected = {}
            for n in range(company):
                engine.submit(f"other-{n}", range(n + 10), max_tokens=20)
            engine.submit("a", range(3, 25), prompt_logprobs=2, max_tokens=20)
            engine.loop.take_messages()
            while engine.loop.live:
                engine.loop.step()
                message = engine.loop.outbox.flush()
                for name, items in (message.prompt_logprobs if message else {}).items():
                    assert name not in collected, "sent twice"
                    collected[name] = items
            return collected["a"], engine.scheduler.preemptions

        whole, _ = scores(0, prefill_chunk=64, step_tokens=64)
        chunked, _ = scores(0, prefill_chunk=3)
        contended, preemptions = scores(3, entries=17)
        assert preemptions > 0
        assert whole[0] is None and len(whole) == 22
        assert [item.token_ids[0] for item in whole[1:]] == list(range(4, 25))
        assert all(len(item.token_ids) == 3 for item in whole[1:])
        assert chunked == whole == contended

    def test_one_token_prompt(self, engine_type) -> None:
        engine = engine_type()
        engine.submit("a", [9], prompt_logprobs=0, max_tokens=1)
        engine.loop.take_messages()
        engine.loop.step()
        assert engine.loop.outbox.flush().prompt_logprobs == {"a": [None]}

    def test_columns_are_sent_only_when_somebody_asked(self, engine_type) -> None:
        engine = engine_type()
        engine.submit("a", [1, 2], max_tokens=1)
        engine.loop.take_messages()
        engine.loop.step()
        assert engine.loop.outbox.flush().logprobs == []
        engine.submit("b", [1, 2], max_tokens=1, logprobs=3)
        engine.submit("c", [1, 2], max_tokens=1)
        engine.loop.take_messages()
        engine.loop.step()
        message = engine.loop.outbox.flush()
        assert len(message.logprobs) == 2 and len(message.top_logprobs[0].token_ids) == 3
        assert message.top_logprobs[1] is None


class TestEmbeddings:
    def test_pooling_is_the_same_in_chunks(self, engine_type) -> None:
        def vectors(**settings: int) -> dict[str, list[float]]:
            engine = engine_type(**settings)
            for pooling in ("mean", "last", "cls"):
                engine.send(EmbedSubmit(pooling, list(range(3, 23)), pooling, normalise=False))
            engine.send(EmbedSubmit("unit", list(range(20)), "mean"))
            engine.run()
            assert all(isinstance(message, Embedding) for message in engine.other)
            return {message.request_id: message.vector for message in engine.other}

        whole = vectors(prefill_chunk=32, step_tokens=64)
        assert whole["last"][1] == 22 and whole["mean"][1] == pytest.approx(12.5)
        assert whole["cls"][1] == 3
        assert sum(x * x for x in whole["unit"]) == pytest.approx(1.0)
        assert vectors(prefill_chunk=3) == whole

    @pytest.mark.parametrize(
        ("message", "reason"),
        [
            (EmbedSubmit("e", [], "mean"), "EMPTY_PROMPT"),
            (EmbedSubmit("e", [1], "max"), "INVALID_VALUE"),
            (EmbedSubmit("e", [1], readout="score"), "UNSUPPORTED_OPTION"),
            (EmbedSubmit("e", [1] * 65, "mean"), "CONTEXT_LENGTH_EXCEEDED"),
        ],
    )
    def test_refusals(self, engine_type, message: EmbedSubmit, reason: str) -> None:
        engine = engine_type()
        engine.send(message)
        engine.run()
        assert [answer.error_reason for answer in engine.other] == [reason]

    def test_cancel(self, engine_type) -> None:
        engine = engine_type()
        engine.send(EmbedSubmit("e", list(range(40)), "mean"))
        engine.step()
        engine.send(Cancel("e"))
        engine.step()
        assert [answer.error_reason for answer in engine.other] == ["CANCELLED"]
        assert engine.allocator.used == 0


class TestLoop:
    def test_serves_until_shutdown_and_reports_while_idle(self, engine_type) -> None:
        engine = engine_type()
        engine.submit("a", [1, 2, 3], max_tokens=3)
        waits: list[object] = []

        def idle() -> None:
            waits.append(None)
            if len(waits) == 3:
                engine.send(Shutdown())

        engine.endpoint.before_wait = idle
        engine.loop.run()
        engine.collect()
        assert engine.finished["a"].reason == "length"
        gauges = [message for message in engine.other if isinstance(message, Gauges)]
        assert len(gauges) >= 5
        assert (gauges[-1].running, gauges[-1].kv_used, gauges[-1].steps) == (0, 0, 3)
        assert gauges[-1].prefill_tokens == 3 and gauges[-1].decode_tokens == 2
        assert gauges[1].kv_used > 0 and gauges[-1].rss_bytes > 0


def test_random_traffic_with_cancels_leaves_nothing_behind(
    engine_type, greedy_reference: Reference
) -> None:
    chance = random.Random(11)
    engine = engine_type(entries=20)
    prompts: dict[str, list[int]] = {}
    for n in range(150):
        for _ in range(chance.randrange(3)):
            name = f"r{len(prompts)}"
            prompts[name] = [chance.randrange(60) for _ in range(chance.randrange(1, 20))]
            engine.submit(name, prompts[name], max_tokens=chance.randrange(1, 12),
                          interactive=chance.random() < 0.8)  # fmt: skip
        if prompts and chance.random() < 0.5:
            engine.send(Cancel(chance.choice(list(prompts))))
        if n % 2:
            engine.step()
    engine.run()
    assert sorted(engine.finished) == sorted(prompts)
    for name, tokens in engine.outputs.items():
        assert tokens == greedy_reference(prompts[name], len(tokens))
    assert engine.allocator.used == 0 and engine.tables.free_rows == 4
