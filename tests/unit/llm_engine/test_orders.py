"""An operator's orders to one request: end now, answer now."""

from __future__ import annotations

import pytest
from antiphon_llm.messages import AnswerNow, Done, Reasoning, StopNow

from .conftest import END

OVERLAPS = pytest.mark.parametrize("overlap_depth", [0, 1])
CLOSE = [40, 41]
THINKS = Reasoning(start_ids=[], end_ids=CLOSE, open=True)


def answers(engine) -> dict[str, str]:
    """Why each order was refused; empty for those that were carried out."""
    done = [message for message in engine.other if isinstance(message, Done)]
    assert all((message.error_reason == "WRONG_STATE") == bool(message.error) for message in done)
    return {message.request_id: message.error for message in done}


@OVERLAPS
def test_a_stopped_request_ends_normally_whatever_its_rules(engine_type, overlap_depth) -> None:
    engine = engine_type(overlap_depth=overlap_depth)
    engine.submit("a", [1, 2, 3], max_tokens=60, ignore_eos=True, min_tokens=50,
                  allowed_token_ids=list(range(10, 30)))  # fmt: skip
    engine.submit("b", [4, 5], max_tokens=12)
    for _ in range(5):
        engine.step()
    before = len(engine.outputs["a"])
    engine.send(StopNow("order", "a"))
    engine.run()
    assert answers(engine) == {"order": ""}
    finish = engine.finished["a"]
    assert (finish.reason, finish.stop_token) == ("stop", END)
    assert engine.outputs["a"][-1] == END
    assert before < len(engine.outputs["a"]) <= before + 1 + overlap_depth
    assert engine.finished["b"].reason == "length"


def test_a_request_without_a_row_ends_at_once(engine_type) -> None:
    engine = engine_type(max_rows=1)
    engine.submit("runs", [1, 2, 3], max_tokens=20)
    engine.submit("waits", [1, 2, 3], max_tokens=20)
    engine.step()
    engine.send(StopNow("order", "waits"))
    engine.step()
    assert engine.finished["waits"].reason == "stop" and "waits" not in engine.outputs
    engine.run()
    assert engine.finished["runs"].reason == "length"


@OVERLAPS
def test_an_order_to_answer_closes_the_block(engine_type, overlap_depth) -> None:
    engine = engine_type(overlap_depth=overlap_depth)
    engine.submit("a", [1, 2, 3], max_tokens=20, reasoning=THINKS, banned_token_ids=CLOSE)
    for _ in range(5):
        engine.step()
    assert not set(CLOSE) & set(engine.outputs["a"])
    before = len(engine.outputs["a"])
    engine.send(AnswerNow("order", "a"))
    engine.run()
    assert answers(engine) == {"order": ""}
    began = engine.outputs["a"].index(CLOSE[0])
    assert engine.outputs["a"][began : began + 2] == CLOSE
    assert before <= began <= before + overlap_depth
    assert engine.finished["a"].reasoning_tokens == began + 2
    assert len(engine.outputs["a"]) == 20


def test_orders_that_can_do_nothing_are_refused_with_the_reason(engine_type) -> None:
    engine = engine_type()
    engine.submit("plain", [1, 2], max_tokens=30)
    engine.submit("thinks", [1, 2], max_tokens=30, reasoning=THINKS)
    engine.step()
    for name, message in {
        "gone": StopNow("gone", "nobody"),
        "gone too": AnswerNow("gone too", "nobody"),
        "plain": AnswerNow("plain", "plain"),
        "first": AnswerNow("first", "thinks"),
    }.items():
        assert message.request_id == name
        engine.send(message)
    for _ in range(6):
        engine.step()
    engine.send(AnswerNow("second", "thinks"))
    engine.run()
    assert answers(engine) == {
        "gone": "the request is not running",
        "gone too": "the request is not running",
        "plain": "the request does not reason",
        "first": "",
        "second": "the reasoning block is closed already",
    }
