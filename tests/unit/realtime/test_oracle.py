"""Random walks of client, backends and clock over the reducer, judged by the oracle."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from antiphon_gateway.domain.generation import Usage
from antiphon_gateway.realtime import codec, commands, inputs, session
from antiphon_gateway.realtime.errors import BackendFailure
from antiphon_gateway.realtime.events import encode
from antiphon_gateway.realtime.settings import RealtimeSettings
from antiphon_gateway.realtime.state import Served
from oracle import Oracle

RUNS = 2000
STEPS = 45
FAILURES = (
    BackendFailure("server_error", "bad_gateway", "died"),
    BackendFailure("invalid_request_error", "context_length_exceeded", "too long"),
)
SETTINGS = RealtimeSettings(max_session_seconds=5000, input_idle_seconds=4000)


class Walk:
    """One random run: what may happen next depends on what the session asked for."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.oracle = Oracle()
        self.now = 0.0
        self.state = session.new_state(
            token=f"{seed:08x}",
            model="m",
            settings=SETTINGS,
            served=Served(),
            wall_seconds=1,
        )
        self.running: dict[str, commands.ResponsePlan] = {}
        self.flushes: list[str] = []
        self.single_items: list[str] = []
        self.calls: list[str] = []
        self.utterance = 0
        self.speaking = False
        self.finals: list[int] = []
        self.feed(inputs.Opened())

    def feed(self, event: inputs.Input) -> None:
        self.now += self.random.random() * 0.2
        for command in session.step(self.state, event, self.now):
            match command:
                case commands.Send():
                    self.oracle.observe(json.loads(encode(command.event)))
                case commands.StartResponse():
                    assert command.plan.response_id not in self.running, "started twice"
                    self.running[command.plan.response_id] = command.plan
                case commands.StopResponse():
                    self.running.pop(command.response_id, None)
                case commands.FlushRecognizer():
                    self.flushes.append(command.tag)
                case commands.TranscribeItem():
                    self.single_items.append(command.item_id)
                case commands.OpenRecognizer():
                    self.flushes.clear()
                    self.finals.clear()
                    self.speaking = False
        self.oracle.check_state(self.state)

    def client(self, **fields: Any) -> None:
        try:
            event = codec.decode(json.dumps(fields))
        except codec.InvalidEvent as invalid:
            self.feed(inputs.BadFrame(invalid.error, invalid.event_id))
            return
        self.feed(event)

    def item_id(self) -> str:
        ids = [entry.id for entry in self.state.conversation] or ["item_none"]
        return self.random.choice([*ids, "item_none"])

    def run(self, steps: int) -> None:
        actions: list[Callable[[], None]] = [
            *[self.append] * 4,
            *[self.recognise] * 6,
            *[self.reply] * 12,
            self.commit,
            self.clear,
            self.create_item,
            self.edit_item,
            *[self.create_response] * 2,
            self.cancel,
            self.update,
            self.break_recogniser,
            self.garbage,
        ]
        for _ in range(steps):
            if self.state.closed:
                return
            self.random.choice(actions)()
        self.wind_up()

    def wind_up(self) -> None:
        """Lets every backend answer, so that all that was opened ends."""
        for _ in range(200):
            if not (self.running or self.finals or self.flushes or self.single_items):
                break
            self.finish_recognition()
            for response_id in list(self.running):
                self.running.pop(response_id, None)
                self.feed(inputs.TextEnded(response_id, False, None))
                self.feed(inputs.ReplyEnded(response_id))
        self.oracle.finish()
        assert not self.state.pending, "no transcript is forgotten"

    def append(self) -> None:
        audio = base64.b64encode(bytes(self.random.randrange(12_000))).decode()
        self.client(type="input_audio_buffer.append", audio=audio)

    def recognise(self) -> None:
        choice = self.random.randrange(3)
        epoch = self.state.epoch
        position = self.state.buffer.end_ms - self.state.epoch_start_ms
        again = self.random.random() < 0.1
        if choice == 0 and (again or not self.speaking) and self.state.recognizer_open:
            self.utterance += not self.speaking
            self.speaking = True
            self.feed(inputs.SpeechBegan(epoch, self.utterance, max(0, position - 400)))
        elif choice == 1 and self.speaking:
            self.speaking = False
            self.finals.append(self.utterance)
            self.feed(inputs.SpeechEnded(epoch, self.utterance, max(0, position - 200)))
        else:
            self.finish_recognition()

    def finish_recognition(self) -> None:
        epoch = self.state.epoch
        failed = self.random.random() < 0.1
        text = self.random.choice(["hello there", "", "well"])
        if self.single_items:
            item = self.single_items.pop(0)
            self.feed(inputs.ItemTranscribed(item, text, FAILURES[0] if failed else None))
            return
        tag, utterance = "", -1
        if self.flushes:
            tag = self.flushes.pop(0)
        elif self.finals:
            utterance = self.finals.pop(0)
        else:
            return
        if failed:
            self.feed(inputs.UtteranceFailed(epoch, utterance, FAILURES[0], tag))
        else:
            self.feed(inputs.Transcript(epoch, utterance, text, tag))

    def reply(self) -> None:
        if not self.running:
            return
        response_id = self.random.choice(list(self.running))
        choice = self.random.randrange(9)
        if choice < 4:
            self.feed(inputs.TextProduced(response_id, self.random.choice([" a", "bc", ""]), 1))
        elif choice < 6 and self.running[response_id].speech is not None:
            self.feed(inputs.AudioProduced(response_id, bytes(960), 480))
            self.feed(inputs.SpokenUpTo(response_id, 3, 480))
            message = self.state.responses[response_id].message
            if message:
                self.feed(inputs.AudioSent(response_id, message.entry.id, 480))
        elif choice == 6:
            index = self.random.randrange(2)
            name = f"call_{response_id}_{index}"
            self.calls.append(name)
            self.feed(inputs.CallProduced(response_id, index, name, "f", "{}", 1))
        elif choice == 7:
            self.running.pop(response_id)
            usage = Usage(9, 4, 3) if self.random.random() < 0.5 else None
            self.feed(inputs.TextEnded(response_id, self.random.random() < 0.3, usage))
            self.feed(inputs.ReplyEnded(response_id))
        else:
            self.running.pop(response_id)
            failure = self.random.choice(FAILURES)
            self.feed(inputs.ReplyFailed(response_id, failure, 50, 100))

    def commit(self) -> None:
        self.client(type="input_audio_buffer.commit")

    def clear(self) -> None:
        self.client(type="input_audio_buffer.clear")
        assert self.state.turn is None and not len(self.state.buffer)

    def create_item(self) -> None:
        item: dict[str, Any] = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "hi"}],
        }
        if self.calls and self.random.random() < 0.5:
            item = {
                "type": "function_call_output",
                "call_id": self.random.choice(self.calls),
                "output": "x",
            }
        previous = self.random.choice([None, None, "root", self.item_id()])
        self.client(type="conversation.item.create", item=item, previous_item_id=previous)

    def edit_item(self) -> None:
        kind = self.random.choice(["delete", "retrieve", "truncate"])
        fields = {"content_index": 0, "audio_end_ms": self.random.randrange(50)}
        self.client(
            type=f"conversation.item.{kind}",
            item_id=self.item_id(),
            **(fields if kind == "truncate" else {}),
        )

    def create_response(self) -> None:
        response: dict[str, Any] = {}
        if self.random.random() < 0.4:
            response["conversation"] = "none"
        if self.random.random() < 0.3:
            response["output_modalities"] = ["text"]
        self.client(type="response.create", response=response)

    def cancel(self) -> None:
        ids = [None, "resp_none", *self.state.responses]
        self.client(type="response.cancel", response_id=self.random.choice(ids))

    def update(self) -> None:
        detection = self.random.choice(
            [
                None,
                {"type": "server_vad", "create_response": self.random.random() < 0.8},
                {"type": "semantic_vad", "interrupt_response": self.random.random() < 0.5},
                {"type": "server_vad", "threshold": 7},
            ]
        )
        self.client(
            type="session.update",
            session={"type": "realtime", "audio": {"input": {"turn_detection": detection}}},
        )

    def break_recogniser(self) -> None:
        idle = self.random.random() < 0.5
        if self.state.recognizer_open and not (idle and self.state.pending):
            self.speaking = False
            self.feed(inputs.RecognizerFailed(self.state.epoch, FAILURES[0], idle))

    def garbage(self) -> None:
        self.client(type="nonsense")


@pytest.mark.parametrize("block", range(5))
def test_random_walks_satisfy_the_oracle(block: int) -> None:
    for seed in range(block * RUNS // 5, (block + 1) * RUNS // 5):
        try:
            Walk(seed).run(STEPS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_same_inputs_give_the_same_log() -> None:
    logs = []
    for _ in range(2):
        walk = Walk(4711)
        seen: list[Any] = []
        walk.oracle.observe = seen.append  # type: ignore[method-assign]
        walk.oracle.check_state = lambda state: None  # type: ignore[method-assign]
        walk.oracle.finish = lambda: None  # type: ignore[method-assign]
        walk.run(200)
        logs.append(seen)
    assert logs[0] == logs[1] and len(logs[0]) > 20


@pytest.mark.parametrize(
    "broken",
    [
        "two responses",
        "delta after done",
        "id repeats",
        "text differs",
        "item is not closed",
    ],
)
def test_the_oracle_refuses_broken_logs(broken: str) -> None:
    walk = Walk(1)
    log: list[dict[str, Any]] = []
    walk.oracle.observe = log.append  # type: ignore[method-assign]
    walk.oracle.check_state = lambda state: None  # type: ignore[method-assign]
    walk.client(type="response.create", response={"output_modalities": ["text"]})
    response_id = next(iter(walk.running))
    walk.feed(inputs.TextProduced(response_id, "hello", 1))
    walk.feed(inputs.TextEnded(response_id, False, None))
    walk.feed(inputs.ReplyEnded(response_id))
    kinds = [event["type"] for event in log]
    if broken == "two responses":
        created = log[kinds.index("response.created")]
        again = {**created, "response": {**created["response"], "id": "resp_other"}}
        log.insert(1, again)
    elif broken == "delta after done":
        log.append(log[kinds.index("response.output_text.delta")])
    elif broken == "id repeats":
        log[1]["event_id"] = log[0]["event_id"]
    elif broken == "text differs":
        log[kinds.index("response.output_text.done")]["text"] = "hell"
    else:
        del log[kinds.index("response.output_item.done")]
    if broken != "id repeats":
        for number, event in enumerate(log):
            event["event_id"] = f"e{number:04}"
    judge = Oracle()
    judge.count = 2
    with pytest.raises((AssertionError, KeyError)):
        for event in log:
            judge.observe(event)
        judge.finish()
