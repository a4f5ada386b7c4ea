"""An engine without a model: the same messages, output written by the test.

It runs in a thread (``LocalTransport``) or as a process (``python -m scripted_engine``). What it
does with a request follows from the prompt's first id:

``COUNT`` draws the ids 100, 101, ... up to max_tokens, one a step. ``SAY`` draws the rest of the
prompt, then the end token. ``HOLD`` never gets a row. ``STUCK`` gets a row and draws nothing.
``FAIL`` fails after two tokens, ``REFUSE`` is refused: both only the choice that the second id
names.

A flush frees three entries. A sleep waits until nothing is live, or fails at once where its
time is 0; ``Script.deaf`` answers neither.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from antiphon_core.ipc.endpoint import Endpoint, WorkerEndpoint
from antiphon_llm.messages import (
    AnswerNow,
    Boot,
    BootPhase,
    Cancel,
    Done,
    Embedding,
    EmbedSubmit,
    Finish,
    FlushCache,
    Gauges,
    Hello,
    Shutdown,
    Sleep,
    StepOutputs,
    StopNow,
    Submit,
    ToEngine,
    TopLogprobs,
    Wake,
)

COUNT, SAY, HOLD, FAIL, REFUSE, STUCK = 50, 51, 52, 53, 54, 55
END = 2
VOCABULARY = 49152
CONTEXT = 4096


@dataclass
class Script:
    """How the engine behaves as a whole."""

    step_seconds: float = 0.0005
    kv_used: int = 0
    door: str = ""
    vocabulary: int = VOCABULARY
    tokenizer: str = ""
    deaf: bool = False
    reasoning_tokens: int = -1
    unscored: bool = False
    """Whether tokens come without the log-probabilities that were asked for."""
    cached: dict[int, int] = field(default_factory=dict)
    """Prompt tokens that a request's choices found cached, by choice."""
    seen: list[object] = field(default_factory=list)
    """Every message that came; only of use in a thread."""


@dataclass
class _Sequence:
    submit: Submit
    draws: Iterator[int]
    drawn: int = 0
    admitted: bool = False
    stopped: bool = False


class ScriptedEngine:
    """The loop: take messages, draw one token for each sequence, tell the front."""

    def __init__(self, endpoint: Endpoint, script: Script) -> None:
        self._endpoint = endpoint
        self._script = script
        self._live: dict[str, _Sequence] = {}
        self._outputs = StepOutputs(request_ids=[], token_ids=[])
        self._sleeps: list[str] = []
        self._stopping = False
        self._steps = 0

    def run(self) -> None:
        while not self._stopping:
            moving = any(
                item.submit.prompt_ids[0] not in (HOLD, STUCK) for item in self._live.values()
            )
            self._endpoint.wait(self._script.step_seconds if moving else 0.2)
            for message in self._endpoint.drain():
                self._script.seen.append(message)
                self._take(message)
            self._step()

    def _take(self, message: object) -> None:
        if isinstance(message, Boot):
            self._endpoint.send(BootPhase("weights"))
            self._endpoint.send(_hello(message, self._script))
        elif isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, Cancel):
            if self._live.pop(message.request_id, None) is not None:
                self._finish(message.request_id, "cancelled")
        elif isinstance(message, EmbedSubmit):
            total = float(sum(message.prompt_ids))
            self._endpoint.send(Embedding(message.request_id, [total, 3.0, 4.0]))
        elif isinstance(message, Shutdown):
            self._stopping = True
        elif not self._script.deaf:
            self._control(message)

    def _control(self, message: object) -> None:
        if isinstance(message, StopNow | AnswerNow):
            self._order(message)
        elif isinstance(message, FlushCache):
            self._endpoint.send(Done(message.request_id, entries=3))
        elif isinstance(message, Sleep) and self._live and not message.timeout_s:
            self._endpoint.send(Done(message.request_id, "requests still run", "WRONG_STATE"))
        elif isinstance(message, Sleep):
            self._script.door = "ASLEEP"
            self._sleeps.append(message.request_id)
        elif isinstance(message, Wake):
            self._script.door = ""
            self._send_gauges()
            self._endpoint.send(Done(message.request_id))

    def _order(self, message: StopNow | AnswerNow) -> None:
        item = self._live.get(message.sequence)
        if item is None:
            self._endpoint.send(Done(message.request_id, "it is not running", "WRONG_STATE"))
        elif isinstance(message, AnswerNow):
            self._endpoint.send(Done(message.request_id, "it does not reason", "WRONG_STATE"))
        else:
            item.draws, item.stopped = iter([END]), True
            self._endpoint.send(Done(message.request_id))

    def _submit(self, submit: Submit) -> None:
        kind = submit.prompt_ids[0]
        if kind == REFUSE and submit.choice == submit.prompt_ids[1]:
            finish = Finish(submit.request_id, "error", "no room", "QUEUE_FULL", retry_after=2.5,
                            limit=2.0, observed=3.0)  # fmt: skip
            self._outputs.finished.append(finish)
            return
        words = submit.prompt_ids[1:] if kind == SAY else range(100, VOCABULARY)
        self._live[submit.request_id] = _Sequence(submit, iter([*words, END]))

    def _step(self) -> None:
        for name, item in list(self._live.items()):
            if item.submit.prompt_ids[0] != HOLD:
                self._draw(name, item)
        outputs = self._outputs
        if outputs.request_ids or outputs.admitted or outputs.finished:
            self._endpoint.send(outputs)
            self._outputs = StepOutputs(request_ids=[], token_ids=[])
        self._steps += 1
        self._send_gauges()
        while self._sleeps and not self._live:
            self._endpoint.send(Done(self._sleeps.pop(), released_bytes=4096))

    def _send_gauges(self) -> None:
        self._endpoint.send(
            Gauges(
                at=time.time(),
                waiting=0,
                running=len(self._live),
                kv_used=self._script.kv_used,
                door=self._script.door,
                kv_total=100,
                rows_total=8,
                steps=self._steps,
                prefill_tokens=0,
                decode_tokens=0,
                step_seconds=0.001,
            )
        )

    def _draw(self, name: str, item: _Sequence) -> None:
        sampling, prompt = item.submit.sampling, item.submit.prompt_ids
        if not item.admitted:
            item.admitted = True
            self._outputs.admitted.append(name)
            self._outputs.cached[name] = self._script.cached.get(item.submit.choice, 0)
            if sampling.prompt_logprobs >= 0:
                scored = prompt[2:] if self._script.unscored else prompt[1:]
                scores = [TopLogprobs([index, 7], [-0.25, -2.0], 2) for index in scored]
                self._outputs.prompt_logprobs[name] = [None, *scores]
        if prompt[0] == STUCK:
            return
        if prompt[0] == FAIL and item.drawn == 2 and item.submit.choice == prompt[1]:
            self._finish(name, "error", "NaN logits", "BAD_LOGITS")
            return
        token = next(item.draws)
        item.drawn += 1
        self._outputs.request_ids.append(name)
        self._outputs.token_ids.append(token)
        if not self._script.unscored:
            self._outputs.logprobs.append(-0.5)
            self._outputs.top_logprobs.append(TopLogprobs([token, 7], [-0.5, -1.5], 3))
        if token == END and (item.stopped or not sampling.ignore_eos):
            self._finish(name, "stop", stop_token=token)
        elif item.drawn >= sampling.max_tokens:
            self._finish(name, "length")
        elif item.submit.deadline and time.time() > item.submit.deadline:
            self._finish(name, "deadline")

    def _finish(
        self, name: str, reason: str, error: str = "", error_reason: str = "", stop_token: int = -1
    ) -> None:
        self._live.pop(name, None)
        finish = Finish(
            name, reason, error, error_reason, stop_token, decode_seconds=0.01,
            accepted_drafts=3, rejected_drafts=1, reasoning_tokens=self._script.reasoning_tokens,
        )  # fmt: skip
        self._outputs.finished.append(finish)


def _hello(boot: Boot, script: Script) -> Hello:
    return Hello(
        architecture="ScriptedForCausalLM",
        vocab_size=script.vocabulary,
        context_limit=CONTEXT,
        eos_ids=[END],
        kv_entries=100,
        entry_tokens=16,
        max_rows=boot.config.max_rows,
        weight_bytes=1,
        kv_bytes=1,
        device="cpu",
        dtype="float32",
        entry_bytes=1000,
        tokenizer=script.tokenizer,
        embedding_size=3,
    )


if __name__ == "__main__":
    endpoint = WorkerEndpoint.from_argv(sys.argv[1:], inbound=ToEngine)
    ScriptedEngine(endpoint, Script(step_seconds=0.02)).run()
    endpoint.close()
