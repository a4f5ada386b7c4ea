"""Random walks of client, backends, socket and clock over the reducer, judged by the oracle.

A walk is a seed and a list of step numbers; each step draws from a generator of its own, so a
failing walk can be shortened by leaving steps out.
"""

from __future__ import annotations

import hashlib
import random
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import walk_client
import walk_faults
from antiphon_gateway.realtime import codec, commands, events, inputs, session
from antiphon_gateway.realtime.events import RateLimit
from antiphon_gateway.realtime.send_queue import SendQueue
from antiphon_gateway.realtime.settings import RealtimeSettings
from antiphon_gateway.realtime.state import Served
from oracle import Oracle, ResponseLog
from walk_backends import VOICE, Backends, Recogniser

STEPS = 40
SETTINGS = RealtimeSettings(
    max_session_seconds=5000, input_idle_seconds=4000, secret_key="", compaction_share=0.5
)


class Judge(Oracle):
    """The oracle, with the audio that each response ought to have."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[str, int] = {}

    def on_audio(self, response_id: str, log: ResponseLog) -> None:
        self.heard[response_id] = log.audio_bytes
        expected = VOICE[: log.audio_bytes]
        assert log.audio_hash.digest() == _digest(expected), "audio was lost, repeated or changed"


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
        self.backends = Backends(self)
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
            name = self.random.choice(_DRAWN)
            self.log.append(f"-- {step} {name}")
            _ACTIONS[name][1](self)
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
        backends = self.backends
        match command:
            case commands.Send():
                self.queue.put(command)
                if isinstance(command.event, events.AudioCommitted):
                    self.committed.add(command.event.item_id)
            case commands.SilenceLane():
                self.queue.silence(command.lane, command.generation)
            case commands.StartResponse():
                backends.start(command.plan)
            case commands.ReleaseResponse():
                if command.response_id in backends.replies:
                    backends.replies[command.response_id].held = False
            case commands.StopResponse():
                backends.replies.pop(command.response_id, None)
            case commands.OpenRecognizer():
                position = self.state.buffer.received - len(command.replay)
                backends.ear = Recogniser(command.epoch, position)
                backends.hear(command.replay)
            case commands.RecognizeAudio():
                backends.hear(command.data)
            case commands.FlushRecognizer():
                backends.flush(command.tag)
            case commands.TranscribeItem():
                backends.alone.append(command.item_id)
            case commands.Summarize():
                backends.summaries.append(command.number)
            case commands.PreparePhrase():
                backends.phrases.append(command)
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

    def wait(self) -> None:
        self.now += self.random.choice([0.1, 0.4, 3.0])
        self.feed(inputs.Tick(self.random.choice([0.0, 0.0, 0.95])))

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
        backends = self.backends
        if backends.recogniser_says() or backends.behind():
            return True
        said = [backends.say_next(name) for name in list(backends.replies)]
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


_ACTIONS: dict[str, tuple[int, Callable[[Walk], object]]] = {
    "append": (5, walk_client.append),
    "recognise": (7, lambda walk: walk.backends.recognise()),
    "reply": (9, lambda walk: walk.backends.reply()),
    "create_response": (2, walk_client.create_response),
    "wait": (2, Walk.wait),
    "read_some": (2, Walk.read_some),
    "behind": (1, lambda walk: walk.backends.behind()),
    "commit": (1, walk_client.commit),
    "clear": (1, walk_client.clear),
    "create_item": (1, walk_client.create_item),
    "edit_item": (1, walk_client.edit_item),
    "cancel": (1, walk_client.cancel),
    "clear_output": (1, walk_client.clear_output),
    "update": (1, walk_client.update),
    "break_recogniser": (1, walk_faults.break_recogniser),
    "garbage": (1, walk_faults.garbage),
}
"""What may happen next: its weight, and how it happens."""
_DRAWN = [name for name, (weight, _) in _ACTIONS.items() for _ in range(weight)]


_digests: dict[bytes, bytes] = {}


def _digest(data: bytes) -> bytes:
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


def shorten(seed: int, given: Sequence[int] = range(STEPS)) -> tuple[list[int], Walk]:
    """The fewest steps found that still break a rule, and their walk."""
    steps = list(given)
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


def check(seeds: Sequence[int], given: Sequence[int] = range(STEPS)) -> None:
    """Runs walks; fails with the seed, the shortened steps and their log."""
    for seed in seeds:
        if judge(seed, given) is not None:
            steps, walk = shorten(seed, given)
            log = "\n".join(walk.log)
            raise AssertionError(f"seed {seed}, steps {steps}:\n{log}")
