"""Random walks of client, backends, socket and clock over the reducer, judged by the oracle.

A walk is a seed and a list of step numbers; each step draws from a generator of its own, so a
failing walk can be shortened by leaving steps out.
"""

from __future__ import annotations

import random
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from antiphon_gateway.domain.generation import Role, Usage
from antiphon_gateway.realtime import codec, commands, events, inputs, session
from antiphon_gateway.realtime.errors import BackendFailure
from antiphon_gateway.realtime.events import Logprob, RateLimit
from antiphon_gateway.realtime.send_queue import SendQueue
from antiphon_gateway.realtime.settings import RealtimeSettings
from antiphon_gateway.realtime.state import Served
from oracle import Oracle, ResponseLog

STEPS = 40
DIED = BackendFailure("server_error", "bad_gateway", "died")
TOO_LONG = BackendFailure("invalid_request_error", "context_length_exceeded", "too long")
SETTINGS = RealtimeSettings(
    max_session_seconds=5000, input_idle_seconds=4000, secret_key="", compaction_share=0.5
)
PATTERN = bytes(range(251)) * 600
"""Input audio; its period is no multiple of a sample, so a shifted byte shows."""
VOICE = bytes(range(1, 240)) * 200
"""Every reply's audio, from its beginning."""


class Judge(Oracle):
    """The oracle, with the audio that each response ought to have."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[str, int] = {}

    def on_audio(self, response_id: str, log: ResponseLog) -> None:
        self.heard[response_id] = log.audio_bytes
        expected = VOICE[: log.audio_bytes]
        assert log.audio_hash.digest() == _digest(expected), "audio was lost, repeated or changed"


@dataclass
class Reply:
    """A running reply at the backends: what they have still to say."""

    plan: commands.ResponsePlan
    messages: deque[inputs.Report]
    held: bool
    produced: int = 0


@dataclass
class Recogniser:
    """The live stream: what it has still to say."""

    epoch: int = 0
    position: int = 0
    utterance: int = -1
    speaking: bool = False
    messages: deque[inputs.Input] = field(default_factory=deque)


class Walk:
    """One random run: what may happen next depends on what the session asked for."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.log: list[str] = []
        self.judge = Judge()
        self.queue = SendQueue()
        self.slow = self.random.random() < 0.3
        self.now = 0.0
        self.frozen = False
        kind = "transcription" if self.random.random() < 0.1 else "realtime"
        self.state = session.new_state(
            token=f"{seed:08x}",
            model="" if kind == "transcription" else "m",
            settings=SETTINGS,
            served=Served(),
            wall_seconds=1,
            kind=kind,
            context_limit=60,
        )
        self.replies: dict[str, Reply] = {}
        self.recogniser = Recogniser()
        self.alone: list[str] = []
        self.summaries: list[int] = []
        self.phrases: list[commands.PreparePhrase] = []
        self.calls: list[str] = []
        self.committed: set[str] = set()
        self.appended = bytearray()
        self.taken = self.used = 0
        self.feed(inputs.Opened())

    def run(self, steps: Sequence[int] = range(STEPS)) -> None:
        """Takes the steps, then lets every backend answer and the client read."""
        for step in steps:
            if self.state.closed:
                break
            self.random = random.Random(self.seed * 1_000_003 + step)
            action = self.random.choice(_ACTIONS)
            self.log.append(f"-- {step} {action.__name__}")
            action(self)
        self.wind_up()

    def feed(self, event: inputs.Input) -> None:
        """One input; its commands are carried out by fakes."""
        if not self.frozen:
            self.now += self.random.random() * 0.2
        pending: list[inputs.Input] = []
        for command in session.step(self.state, event, self.now):
            self.carry_out(command, pending)
        self.check_input_audio()
        if not self.slow or self.random.random() < 0.05:
            self.read()
        for follow_up in pending:
            self.feed(follow_up)

    def carry_out(self, command: commands.Command, pending: list[inputs.Input]) -> None:
        """Does what the connection would do."""
        match command:
            case commands.Send():
                self.queue.put(command)
                if isinstance(command.event, events.AudioCommitted):
                    self.committed.add(command.event.item_id)
            case commands.SilenceLane():
                self.queue.silence(command.lane, command.generation)
            case commands.StartResponse():
                self.start(command.plan)
            case commands.ReleaseResponse():
                if command.response_id in self.replies:
                    self.replies[command.response_id].held = False
            case commands.StopResponse():
                self.replies.pop(command.response_id, None)
            case commands.OpenRecognizer():
                position = self.state.buffer.received - len(command.replay)
                self.recogniser = Recogniser(command.epoch, position)
                self.hear(command.replay)
            case commands.RecognizeAudio():
                self.hear(command.data)
            case commands.FlushRecognizer():
                self.flush(command.tag)
            case commands.TranscribeItem():
                self.alone.append(command.item_id)
            case commands.Summarize():
                self.summaries.append(command.number)
            case commands.PreparePhrase():
                self.phrases.append(command)
            case commands.ReportRateLimits():
                if self.random.random() < 0.3:
                    pending.append(inputs.RateLimitsKnown((RateLimit("tokens", 9, 8, 0.5),)))
            case commands.Close():
                assert self.state.closed
            case _:
                pass

    def read(self, most: int = 1_000_000) -> None:
        """The client reads; the oracle sees what it reads."""
        while len(self.queue) and most:
            most -= 1
            frame = self.queue.pop()
            event = msgspec.json.decode(frame.data)
            self.log.append(f"   {event['type']}")
            self.judge.observe(event)
            if frame.audio is not None:
                self.queue.sent(frame.audio)
                sent = inputs.AudioSent(
                    frame.audio.response_id, frame.audio.item_id, frame.audio.sample_count
                )
                for command in session.step(self.state, sent, self.now):
                    self.carry_out(command, [])
        if not len(self.queue) and not self.state.closed:
            self.judge.check_state(self.state)

    def client(self, **fields: Any) -> None:
        """A client event as JSON."""
        self.judge.cleared |= fields["type"] == "output_audio_buffer.clear"
        try:
            event = codec.decode(msgspec.json.encode(fields))
        except codec.InvalidEvent as invalid:
            self.feed(inputs.BadFrame(invalid.error, invalid.event_id))
            return
        self.feed(event)

    def check_input_audio(self) -> None:
        """Every byte that came in is used once, dropped or held, and lies where it belongs."""
        buffer = self.state.buffer
        assert buffer.received == len(self.appended), "a byte was lost on its way in"
        assert buffer.received == buffer.used + buffer.dropped + len(buffer), "a byte is missing"
        base = buffer.received - len(buffer)
        assert base >= self.taken, "a byte is used twice"
        assert buffer.content() == self.appended[base:], "what is held was moved"
        used, self.used = buffer.used - self.used, buffer.used
        if used:
            spoken = [e for e in self.state.conversation if e.id in self.committed]
            assert base - used >= self.taken, "an item has bytes of another"
            audio = self.appended[base - used : base]
            assert any(entry.audio == audio for entry in spoken), "an item was cut wrongly"
        self.taken = base

    def hear(self, data: bytes) -> None:
        """Audio reaches the recogniser: each byte of its stream once, in order."""
        position = self.recogniser.position
        assert bytes(self.appended[position : position + len(data)]) == data, "misheard"
        self.recogniser.position += len(data)

    def flush(self, tag: str) -> None:
        """A manual commit ends the utterance."""
        self.recogniser.speaking = False
        self.recogniser.utterance += 1
        self.recogniser.messages.append(self.final(self.recogniser.utterance, tag))

    def final(self, utterance: int, tag: str = "") -> inputs.Input:
        """Text of an utterance, or its failure."""
        epoch = self.recogniser.epoch
        if self.random.random() < 0.1:
            return inputs.UtteranceFailed(epoch, utterance, DIED, tag)
        text = self.random.choice(["hello there", "hello there friend", "", "well"])
        return inputs.Transcript(epoch, utterance, text, tag, (Logprob("well", [1], -0.5),))

    def start(self, plan: commands.ResponsePlan) -> None:
        """A reply starts at the backends, whose whole script is drawn now."""
        assert plan.response_id not in self.replies, "started twice"
        _check_prompt(plan)
        name = plan.response_id
        draw = self.random
        said: list[inputs.Report] = [inputs.PromptAccepted(name, draw.randrange(5, 50))]
        cut = draw.random() < 0.2
        sample = length = 0
        for _ in range(draw.randrange(5)):
            text = draw.choice([" a", "bc", "", " long word"])
            length += len(text)
            said.append(inputs.TextProduced(name, text, 1))
            if plan.speech is not None:
                size = 2 * draw.randrange(1, 600)
                data = VOICE[2 * sample : 2 * sample + size]
                sample += size // 2
                said.append(inputs.AudioProduced(name, data, size // 2))
                said.append(inputs.SpokenUpTo(name, length, sample))
        for index in range(draw.choice([0, 0, 0, 1, 2])):
            call = f"call_{name}_{index}"
            self.calls.append(call)
            said.append(inputs.CallProduced(name, index, call, "look", "", 1))
            said.append(inputs.CallProduced(name, index, "", "", "{}", 1))
        usage = Usage(9, 4, 3) if draw.random() < 0.5 else None
        said += [inputs.TextEnded(name, cut, usage), inputs.ReplyEnded(name)]
        fault = draw.random()
        if fault < 0.15:
            # The call breaks: what was on its way is lost, and the client helper says why.
            said = [*said[: draw.randrange(len(said))], inputs.ReplyFailed(name, DIED)]
        elif fault < 0.25:
            said = [inputs.ReplyFailed(name, TOO_LONG, 50, 100)]
        self.replies[name] = Reply(plan, deque(said), plan.held)

    def reply(self) -> None:
        """A backend says the next thing, or a burst."""
        if not self.replies:
            return
        name = self.random.choice(list(self.replies))
        burst = self.random.random() < 0.15
        self.frozen = burst
        for _ in range(1000 if burst else self.random.randrange(1, 4)):
            if not self.say_next(name):
                break
        self.frozen = False

    def say_next(self, name: str) -> bool:
        """The next message of a reply, as far as the backends may go."""
        reply = self.replies.get(name)
        if reply is None or not reply.messages:
            return False
        message = reply.messages[0]
        if isinstance(message, inputs.AudioProduced):
            if reply.held and reply.produced:
                return False
            if not self.queue.has_credit:
                return False
            reply.produced += len(message.data)
        reply.messages.popleft()
        if not reply.messages:
            del self.replies[name]
        self.feed(message)
        return True

    def recognise(self) -> None:
        """The recogniser notices something, or says the next thing that it knows."""
        ear = self.recogniser
        if not self.state.recognizer_open or (ear.messages and self.random.random() < 0.6):
            self.recogniser_says()
            return
        at = max(0, self.state.buffer.end_ms - self.state.epoch_start_ms - 200)
        if not ear.speaking:
            ear.utterance += 1
            ear.speaking = True
            self.feed(inputs.SpeechBegan(ear.epoch, ear.utterance, at))
        elif self.random.random() < 0.2:
            ear.messages.append(inputs.PartialText(ear.epoch, ear.utterance, "hello"))
        elif self.random.random() < 0.1:
            ear.messages.append(self.final(ear.utterance))
            ear.utterance += 1
        else:
            ear.speaking = False
            ear.messages.append(self.final(ear.utterance))
            self.feed(inputs.SpeechEnded(ear.epoch, ear.utterance, at))

    def recogniser_says(self) -> bool:
        """The next message of the recogniser, or the text of an item alone."""
        if self.recogniser.messages:
            self.feed(self.recogniser.messages.popleft())
        elif self.alone:
            failure = DIED if self.random.random() < 0.1 else None
            self.feed(inputs.ItemTranscribed(self.alone.pop(0), "hello there", failure))
        else:
            return False
        return True

    def behind(self) -> bool:
        """What is made behind the replies is ready, or is not."""
        text = self.random.choice(["They said hello.", ""])
        if self.summaries:
            self.feed(inputs.Summarized(self.summaries.pop(0), text))
        elif self.phrases:
            asked = self.phrases.pop(0)
            data = b"" if self.random.random() < 0.1 else VOICE[:960]
            self.feed(inputs.PhraseReady(asked.text, asked.speech, data))
        else:
            return False
        return True

    def append(self) -> None:
        start = len(self.appended) % 251
        data = PATTERN[start : start + self.random.randrange(12_000)]
        self.appended += data
        self.client(type="input_audio_buffer.append", audio=data)

    def commit(self) -> None:
        self.client(type="input_audio_buffer.commit")

    def clear(self) -> None:
        self.client(type="input_audio_buffer.clear")
        assert self.state.turn is None and not len(self.state.buffer)
        assert self.state.speculation is None, "a prepared reply outlives its turn"

    def item_id(self) -> str:
        ids = [entry.id for entry in self.state.conversation] or ["item_none"]
        return self.random.choice([*ids, "item_none"])

    def create_item(self) -> None:
        content: dict[str, Any] = {"type": "input_text", "text": "hi"}
        if self.random.random() < 0.2:
            content = {"type": "input_audio", "audio": bytes(9600)}
        item: dict[str, Any] = {"type": "message", "role": "user", "content": [content]}
        if self.calls and self.random.random() < 0.5:
            call = self.random.choice(self.calls)
            item = {"type": "function_call_output", "call_id": call, "output": "x"}
        previous = self.random.choice([None, None, "root", self.item_id()])
        self.client(type="conversation.item.create", item=item, previous_item_id=previous)

    def edit_item(self) -> None:
        kind = self.random.choice(["delete", "retrieve", "truncate"])
        place = {"content_index": 0, "audio_end_ms": self.random.randrange(50)}
        extra = place if kind == "truncate" else {}
        self.client(type=f"conversation.item.{kind}", item_id=self.item_id(), **extra)

    def create_response(self) -> None:
        response: dict[str, Any] = {}
        if self.random.random() < 0.4:
            response["conversation"] = "none"
        if self.random.random() < 0.3:
            response["output_modalities"] = ["text"]
        if self.random.random() < 0.2:
            response["input"] = []
        self.client(type="response.create", response=response)

    def cancel(self) -> None:
        ids = [None, "resp_none", *self.state.responses]
        self.client(type="response.cancel", response_id=self.random.choice(ids))

    def clear_output(self) -> None:
        self.client(type="output_audio_buffer.clear")

    def update(self) -> None:
        draw = self.random
        detection: dict[str, Any] | None = draw.choice(
            [
                None,
                {"type": "server_vad", "create_response": draw.random() < 0.8},
                {"type": "semantic_vad", "interrupt_response": draw.random() < 0.5},
                {"type": "server_vad", "idle_timeout_ms": 2000},
                {"type": "server_vad", "threshold": 7},
            ]
        )
        change: dict[str, Any] = {"audio": {"input": {"turn_detection": detection}}}
        if not self.state.config.transcribes_only:
            change["speculative_ms"] = draw.choice([None, 200])
            change["optional_events"] = draw.choice([[], list(_OPTIONAL)])
            change["instructions"] = draw.choice(["Be brief.", "Be long."])
            tool = {"type": "function", "name": "look", "ack_phrases": ["One moment."]}
            change["tools"] = draw.choice([[], [tool]])
        self.client(type="session.update", session=change)

    def break_recogniser(self) -> None:
        idle = self.random.random() < 0.5
        if self.state.recognizer_open and not (idle and self.state.pending):
            self.recogniser.messages.clear()
            self.recogniser.speaking = False
            self.read()
            self.judge.turn_may_be_over = True
            self.feed(inputs.RecognizerFailed(self.recogniser.epoch, DIED, idle))

    def wait(self) -> None:
        self.now += self.random.choice([0.1, 0.4, 3.0])
        self.feed(inputs.Tick(self.random.choice([0.0, 0.0, 0.95])))

    def garbage(self) -> None:
        self.client(type="nonsense")

    def read_some(self) -> None:
        self.read(self.random.randrange(1, 30))

    def wind_up(self) -> None:
        """Lets every backend answer and the client read, so that all that was opened ends."""
        self.log.append("-- wind up")
        self.slow = False
        for _ in range(3000):
            self.read()
            if self.state.closed or not self.finish_something():
                break
        if not self.state.closed:
            self.judge.finish()
            assert not self.state.pending, "no transcript is forgotten"
            self.check_heard()
        self.close_twice()

    def finish_something(self) -> bool:
        if self.recogniser_says() or self.behind():
            return True
        said = [self.say_next(name) for name in list(self.replies)]
        return any(said)

    def check_heard(self) -> None:
        """What was sent is what the client counted."""
        for entry in self.state.conversation:
            if entry.playback is not None:
                assert entry.playback.sent_samples * 2 >= len(entry.audio) or (
                    entry.playback.interrupted_samples is not None
                )

    def close_twice(self) -> None:
        """After the end nothing is answered, whoever speaks."""
        self.state.closed = True
        for event in (inputs.Tick(), inputs.Drain(), inputs.Opened()):
            assert session.step(self.state, event, self.now) == []


_OPTIONAL = (
    "conversation.item.created",
    "output_audio_buffer.started",
    "output_audio_buffer.stopped",
    "output_audio_buffer.cleared",
)
_ACTIONS: list[Callable[[Walk], object]] = [
    *[Walk.append] * 5,
    *[Walk.recognise] * 7,
    *[Walk.reply] * 9,
    *[Walk.create_response] * 2,
    *[Walk.wait] * 2,
    *[Walk.read_some] * 2,
    Walk.behind,
    Walk.commit,
    Walk.clear,
    Walk.create_item,
    Walk.edit_item,
    Walk.cancel,
    Walk.clear_output,
    Walk.update,
    Walk.break_recogniser,
    Walk.garbage,
]


def _check_prompt(plan: commands.ResponsePlan) -> None:
    """A prompt has no half of a call: each is followed by its results, and no result is alone."""
    due: list[str] = []
    for message in plan.chat.messages:
        if message.role is Role.TOOL:
            assert message.tool_call_id in due, "a result without its call"
            due.remove(message.tool_call_id)
        else:
            assert not due, "a call without its result"
            due = [call.id for call in message.tool_calls]
    assert not due


_digests: dict[bytes, bytes] = {}


def _digest(data: bytes) -> bytes:
    import hashlib

    if data not in _digests:
        _digests[data] = hashlib.sha256(data).digest()
    return _digests[data]


def judge(seed: int, steps: Sequence[int] = range(STEPS)) -> Walk | None:
    """Runs a walk; the walk if it broke a rule, else None."""
    walk: Walk | None = None
    try:
        walk = Walk(seed)
        walk.run(steps)
    except (AssertionError, LookupError, ValueError) as error:
        assert walk is not None
        where = traceback.extract_tb(error.__traceback__)[-1]
        walk.log.append(f"   {type(error).__name__}: {error} ({where.name}:{where.lineno})")
        return walk
    return None


def shorten(seed: int) -> tuple[list[int], Walk]:
    """The fewest steps found that still break a rule, and their walk."""
    steps = list(range(STEPS))
    found = judge(seed, steps)
    assert found is not None
    size = len(steps) // 2
    while size:
        for start in range(0, len(steps), size):
            fewer = steps[:start] + steps[start + size :]
            broken = judge(seed, fewer)
            if broken is not None:
                steps, found = fewer, broken
                break
        else:
            size //= 2
    return steps, found


def check(seeds: Sequence[int]) -> None:
    """Runs walks; fails with the seed, the shortened steps and their log."""
    for seed in seeds:
        if judge(seed) is not None:
            steps, walk = shorten(seed)
            log = "\n".join(walk.log)
            raise AssertionError(f"seed {seed}, steps {steps}:\n{log}")
