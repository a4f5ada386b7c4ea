"""Sleep and wake: nothing is cut off, memory comes back, texts are the same afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from antiphon_llm.engine.memory import discard_pages
from antiphon_llm.engine.sleep import Sleeper
from antiphon_llm.kvcache.fields import FieldSpec
from antiphon_llm.kvcache.pool import KvPool
from antiphon_llm.messages import Done, FlushCache, Gauges, Sleep, Wake

Reference = Callable[[Sequence[int], int], list[int]]


def done(engine) -> list[Done]:
    return [message for message in engine.other if isinstance(message, Done)]


@pytest.mark.parametrize("depth", [0, 1])
def test_finishes_sleeps_refuses_wakes(
    engine_type, greedy_reference: Reference, depth: int
) -> None:
    engine = engine_type(overlap_depth=depth, prefix_cache=1)
    engine.submit("before", range(20))
    engine.step()
    engine.send(Sleep("s"))
    engine.submit("late", [1, 2])
    engine.step()
    assert engine.finished["late"].error_reason == "ASLEEP" and not done(engine)
    engine.run()
    engine.step()
    assert engine.outputs["before"] == greedy_reference(range(20), 8)
    (answer,) = done(engine)
    assert answer == Done("s", released_bytes=answer.released_bytes)
    assert engine.loop.sleeper.asleep
    assert engine.allocator.used == 0  # The cache is forgotten.
    engine.send(Wake("w"))
    engine.submit("after", range(20))
    engine.run()
    assert done(engine)[1:] == [Done("w")]
    assert engine.outputs["after"] == engine.outputs["before"]
    assert engine.finished["after"].cached_tokens == 0


def before_answers(engine) -> list[Gauges]:
    """The gauges that were sent right before each answer."""
    pairs = zip(engine.other, engine.other[1:], strict=False)
    return [gauges for gauges, answer in pairs if isinstance(answer, Done)]


def test_a_flush_tells_what_is_free_and_whoever_hears_of_it_finds_it_in_the_gauges(
    engine_type,
) -> None:
    engine = engine_type(prefix_cache=1)
    engine.submit("a", range(20))
    engine.run()
    cached = engine.scheduler.holdings.cached
    assert cached > 0
    engine.send(FlushCache("nobody", "nobody"))
    engine.send(FlushCache("all"))
    engine.step()
    assert done(engine) == [Done("nobody"), Done("all", entries=cached)]
    assert [gauges.kv_cached for gauges in before_answers(engine)] == [cached, 0]


def test_the_door_in_the_gauges_is_that_of_the_answer(engine_type) -> None:
    engine = engine_type()
    engine.submit("long", [1], max_tokens=60)
    engine.send(Sleep("hasty", timeout_s=0.0))
    engine.step()
    engine.run()
    for message in (Sleep("s"), Wake("w")):
        engine.send(message)
        engine.step()
    assert [answer.error_reason for answer in done(engine)] == ["WRONG_STATE", "", ""]
    assert [gauges.door for gauges in before_answers(engine)] == ["", "ASLEEP", ""]


def test_gives_up_when_its_time_is_over(engine_type) -> None:
    engine = engine_type()
    now = [0.0]
    engine.loop.sleeper = Sleeper(
        engine.scheduler, engine.runner, engine.loop.door, engine.endpoint.send,
        clock=lambda: now[0],
    )  # fmt: skip
    engine.submit("long", [1], max_tokens=60)
    engine.send(Sleep("s", timeout_s=5.0))
    engine.step()
    now[0] = 6.0
    engine.step()
    assert [answer.error_reason for answer in done(engine)] == ["WRONG_STATE"]
    engine.submit("new", [2])
    engine.run()
    assert engine.finished["new"].reason == "length"


def test_a_wake_calls_a_waiting_sleep_off(engine_type) -> None:
    engine = engine_type()
    engine.submit("long", [1], max_tokens=60)
    engine.send(Sleep("s"))
    engine.step()
    engine.send(Wake("w"))
    engine.step()
    assert [(a.request_id, a.error_reason) for a in done(engine)] == [
        ("s", "WRONG_STATE"),
        ("w", ""),
    ]
    engine.run()
    assert engine.finished["long"].reason == "length"


def test_a_wake_without_memory_stays_asleep(engine_type) -> None:
    engine = engine_type()
    engine.send(Sleep("s"))
    engine.step()

    def no_memory() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    engine.runner.wake = no_memory
    engine.send(Wake("w"))
    engine.submit("a", [1])
    engine.step()
    assert done(engine)[1].error_reason == "MEMORY_PRESSURE"
    assert engine.finished["a"].error_reason == "ASLEEP"


def test_pages_of_the_pool_go_back_to_the_machine() -> None:
    pool = KvPool([FieldSpec("keys", 16, (4, 64), torch.float32)], entries=200)
    view = pool.views["keys"]
    view.fill_(1.0)
    released = discard_pages(view.untyped_storage())
    assert pool.bytes - 2 * 4096 - 256 <= released <= pool.bytes
    assert not view[1:-1].any()
    view.fill_(2.0)
    assert bool((view == 2.0).all())
