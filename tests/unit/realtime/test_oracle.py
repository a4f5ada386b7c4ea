"""Random walks over the reducer, and proof that the oracle finds what is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from antiphon_gateway.realtime import (
    events,
    input_audio,
    inputs,
    outputs,
    responses,
    send_queue,
    speculation,
)
from oracle import Oracle
from realtime_bench import Bench, kinds
from walk import Walk, check, judge, shorten

RUNS = 10_000
BLOCKS = 10
LONG_RUNS, LONG_STEPS = 2_000, 200
FAULT_RUNS = 400
"""Walks within which a planted fault has to be found."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_walks_satisfy_the_oracle(block: int) -> None:
    check(range(block * RUNS // BLOCKS, (block + 1) * RUNS // BLOCKS))


@pytest.mark.slow
def test_long_walks_satisfy_the_oracle() -> None:
    check(range(LONG_RUNS), range(LONG_STEPS))


def test_the_same_seed_gives_the_same_log() -> None:
    logs = []
    for _ in range(2):
        walk = Walk(4711)
        walk.run(range(200))
        logs.append(walk.log)
    assert logs[0] == logs[1] and len(logs[0]) > 50


def two_active_responses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(responses, "_check_possible", lambda state, params: None)


def delta_after_done(patch: pytest.MonkeyPatch) -> None:
    finish = responses._finish

    def forgetful(state: Any, response: Any, *rest: Any) -> None:
        finish(state, response, *rest)
        if response.message is not None:
            outputs.add_text(state, response, "more")

    patch.setattr(responses, "_finish", forgetful)


def lost_audio_byte(patch: pytest.MonkeyPatch) -> None:
    append = input_audio.InputBuffer.append

    def lossy(self: input_audio.InputBuffer, data: bytes) -> None:
        append(self, data[:-1] if len(data) % 7 == 3 else data)

    patch.setattr(input_audio.InputBuffer, "append", lossy)


def byte_used_twice(patch: pytest.MonkeyPatch) -> None:
    take_all = input_audio.InputBuffer.take_all

    def greedy(self: input_audio.InputBuffer) -> bytes:
        taken = take_all(self)
        self._data[:0] = taken[-2:]
        self._base -= 2
        return taken

    patch.setattr(input_audio.InputBuffer, "take_all", greedy)


def missing_closing_on_cancel(patch: pytest.MonkeyPatch) -> None:
    close = outputs.close_message

    def careless(state: Any, response: Any, status: Any) -> None:
        if status != "incomplete":
            close(state, response, status)

    patch.setattr(outputs, "close_message", careless)


def queue_drops_a_control_event(patch: pytest.MonkeyPatch) -> None:
    put = send_queue.SendQueue.put

    def bounded(self: send_queue.SendQueue, item: Any) -> None:
        if len(self) < 12 or item.audio is not None:
            put(self, item)

    patch.setattr(send_queue.SendQueue, "put", bounded)


def queue_drops_audio(patch: pytest.MonkeyPatch) -> None:
    put = send_queue.SendQueue.put

    def bounded(self: send_queue.SendQueue, item: Any) -> None:
        if item.audio is None or len(self) < 6:
            put(self, item)

    patch.setattr(send_queue.SendQueue, "put", bounded)


def held_audio_leaks(patch: pytest.MonkeyPatch) -> None:
    hold = speculation.hold

    def leaky(state: Any, report: inputs.Report) -> None:
        hold(state, report)
        if isinstance(report, inputs.AudioProduced):
            state.send(
                events.AudioDelta(
                    response_id=report.response_id,
                    item_id="item_none",
                    output_index=0,
                    delta=report.data,
                )
            )

    patch.setattr(speculation, "hold", leaky)


def prepared_reply_outlives_its_turn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(speculation, "drop", lambda state: None)


def half_of_a_call_is_shown(patch: pytest.MonkeyPatch) -> None:
    from antiphon_gateway.realtime import history

    patch.setattr(history, "PENDING_OUTPUT", "")
    add_calls = history._add_calls

    def forgetful(messages: Any, calls: Any, outputs: Any) -> None:
        add_calls(messages, calls, outputs)
        if calls and not any(call.call_id in outputs for call in calls):
            messages.pop()

    patch.setattr(history, "_add_calls", forgetful)


@pytest.mark.parametrize(
    "plant",
    [
        two_active_responses,
        delta_after_done,
        lost_audio_byte,
        byte_used_twice,
        missing_closing_on_cancel,
        queue_drops_a_control_event,
        queue_drops_audio,
        held_audio_leaks,
        prepared_reply_outlives_its_turn,
        half_of_a_call_is_shown,
    ],
)
def test_walks_find_a_planted_fault(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = next((seed for seed in range(FAULT_RUNS) if judge(seed) is not None), None)
    assert found is not None, f"{FAULT_RUNS} walks do not notice"
    steps, walk = shorten(found)
    print(f"seed {found}, steps {steps}", *walk.log, sep="\n")
    assert len(steps) < 40


@pytest.mark.parametrize(
    "broken",
    [
        "two responses",
        "delta after done",
        "id repeats",
        "text differs",
        "item is not closed",
        "a surprise",
        "settings change",
    ],
)
def test_the_oracle_refuses_broken_logs(bench: Bench, broken: str) -> None:
    bench.client("response.create", response={"output_modalities": ["text"]})
    bench.reply("hello")
    log = bench.events
    types = kinds(log)
    if broken == "two responses":
        created = log[types.index("response.created")]
        again = {**created, "response": {**created["response"], "id": "resp_other"}}
        log.insert(types.index("response.created") + 1, again)
    elif broken == "delta after done":
        log.append(dict(log[types.index("response.output_text.delta")]))
    elif broken == "text differs":
        log[types.index("response.output_text.done")]["text"] = "hell"
    elif broken == "item is not closed":
        del log[types.index("response.output_item.done")]
    elif broken == "a surprise":
        log.insert(2, {"type": "output_audio_buffer.started", "response_id": "resp_x"})
    elif broken == "settings change":
        log[-1]["response"] = {**log[-1]["response"], "max_output_tokens": 7}
    for number, event in enumerate(log):
        event["event_id"] = "e" if broken == "id repeats" else f"e{number:04}"
    judge_of_log = Oracle()
    with pytest.raises((AssertionError, KeyError)):
        for event in log:
            judge_of_log.observe(event)
        judge_of_log.finish()
