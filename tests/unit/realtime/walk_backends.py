"""What a walk's session runs on: a language model, a voice and a recogniser that say anything."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from antiphon_gateway.domain.generation import Role, Usage
from antiphon_gateway.domain.recognition import TranscriptSegment
from antiphon_gateway.realtime import commands, inputs
from antiphon_gateway.realtime.events import Logprob
from walk_faults import DIED, break_reply

if TYPE_CHECKING:
    from walk import Walk

VOICE = bytes(range(1, 240)) * 200
"""Every reply's audio, from its beginning."""


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


class Backends:
    """The backends of one walk; what they say next is drawn from its generator."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.replies: dict[str, Reply] = {}
        self.ear = Recogniser()
        self.alone: list[str] = []
        self.summaries: list[int] = []
        self.phrases: list[commands.PreparePhrase] = []
        self.calls: list[str] = []

    def hear(self, data: bytes) -> None:
        """Audio reaches the recogniser: each byte of its stream once, in order."""
        position = self.ear.position
        assert bytes(self.walk.appended[position : position + len(data)]) == data, "misheard"
        self.ear.position += len(data)

    def flush(self, tag: str) -> None:
        """A manual commit ends the utterance."""
        self.ear.speaking = False
        self.ear.utterance += 1
        self.ear.messages.append(self.final(self.ear.utterance, tag))

    def final(self, utterance: int, tag: str = "") -> inputs.Input:
        """Text of an utterance, or its failure."""
        epoch = self.ear.epoch
        if self.walk.random.random() < 0.1:
            return inputs.UtteranceFailed(epoch, utterance, DIED, tag)
        text = self.walk.random.choice(["hello there", "hello there friend", "", "well"])
        segments = (
            TranscriptSegment(f" {text}", 20 * utterance, 20 * utterance + 10, speaker="A"),
        )
        logprobs = (Logprob("well", [1], -0.5),)
        return inputs.Transcript(epoch, utterance, text, tag, logprobs, segments)

    def start(self, plan: commands.ResponsePlan) -> None:
        """A reply starts at the backends, whose whole script is drawn now."""
        assert plan.response_id not in self.replies, "started twice"
        _check_prompt(plan)
        name = plan.response_id
        draw = self.walk.random
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
        said = break_reply(name, said, draw)
        self.replies[name] = Reply(plan, deque(said), plan.held)

    def reply(self) -> None:
        """A backend says the next thing, or a burst."""
        if not self.replies:
            return
        name = self.walk.random.choice(list(self.replies))
        burst = self.walk.random.random() < 0.15
        self.walk.frozen = burst
        for _ in range(1000 if burst else self.walk.random.randrange(1, 4)):
            if not self.say_next(name):
                break
        self.walk.frozen = False

    def say_next(self, name: str) -> bool:
        """The next message of a reply, as far as the backends may go."""
        reply = self.replies.get(name)
        if reply is None or not reply.messages:
            return False
        message = reply.messages[0]
        if isinstance(message, inputs.AudioProduced):
            if reply.held and reply.produced:
                return False
            if not self.walk.queue.has_credit:
                return False
            reply.produced += len(message.data)
        reply.messages.popleft()
        if not reply.messages:
            del self.replies[name]
        self.walk.feed(message)
        return True

    def recognise(self) -> None:
        """The recogniser notices something, or says the next thing that it knows."""
        ear, state, draw = self.ear, self.walk.state, self.walk.random
        if not state.recognizer_open or (ear.messages and draw.random() < 0.6):
            self.recogniser_says()
            return
        at = max(0, state.buffer.end_ms - state.epoch_start_ms - 200)
        if not ear.speaking:
            ear.utterance += 1
            ear.speaking = True
            self.walk.feed(inputs.SpeechBegan(ear.epoch, ear.utterance, at))
        elif draw.random() < 0.2:
            ear.messages.append(inputs.PartialText(ear.epoch, ear.utterance, "hello"))
        elif draw.random() < 0.1:
            ear.messages.append(self.final(ear.utterance))
            ear.utterance += 1
        else:
            ear.speaking = False
            ear.messages.append(self.final(ear.utterance))
            self.walk.feed(inputs.SpeechEnded(ear.epoch, ear.utterance, at))

    def recogniser_says(self) -> bool:
        """The next message of the recogniser, or the text of an item alone."""
        if self.ear.messages:
            self.walk.feed(self.ear.messages.popleft())
        elif self.alone:
            failure = DIED if self.walk.random.random() < 0.1 else None
            self.walk.feed(inputs.ItemTranscribed(self.alone.pop(0), "hello there", failure))
        else:
            return False
        return True

    def behind(self) -> bool:
        """What is made behind the replies is ready, or is not."""
        text = self.walk.random.choice(["They said hello.", ""])
        if self.summaries:
            self.walk.feed(inputs.Summarized(self.summaries.pop(0), text))
        elif self.phrases:
            asked = self.phrases.pop(0)
            data = b"" if self.walk.random.random() < 0.1 else VOICE[:960]
            self.walk.feed(inputs.PhraseReady(asked.text, asked.speech, data))
        else:
            return False
        return True


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
