"""An engine without a model that only keeps time: every live request gets one token a step.

Stands in for the engine process where the front and what is before it are measured, so that
nothing else uses the processor.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from antiphon_core.ipc.endpoint import WorkerEndpoint
from antiphon_llm.messages import (
    Boot,
    BootPhase,
    Cancel,
    Finish,
    Gauges,
    Hello,
    Shutdown,
    StepOutputs,
    Submit,
    ToEngine,
)

STEP_SECONDS = 0.04
ROWS = 256
VOCABULARY = 49152
FIRST_TOKEN = 1000
"""Ids from here on are ordinary text in the default model's vocabulary."""
TOKENS = 20_000


@dataclass
class _Row:
    left: int
    token: int


class PacedEngine:
    """The loop: take messages, one token for each row, sleep until the next step is due."""

    def __init__(self, endpoint: WorkerEndpoint) -> None:
        self._endpoint = endpoint
        self._rows: dict[str, _Row] = {}
        self._admitted: list[str] = []
        self._steps = 0
        self._stopping = False

    def run(self) -> None:
        """Runs until it is told to shut down."""
        due = time.monotonic()
        while not self._stopping:
            for message in self._endpoint.drain():
                self._take(message)
            self._step()
            due = max(due + STEP_SECONDS, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))

    def _take(self, message: object) -> None:
        if isinstance(message, Boot):
            self._endpoint.send(BootPhase("weights"))
            self._endpoint.send(_hello(message))
        elif isinstance(message, Submit):
            start = FIRST_TOKEN + len(self._rows) * 17
            self._rows[message.request_id] = _Row(message.sampling.max_tokens, start)
            self._admitted.append(message.request_id)
        elif isinstance(message, Cancel):
            if self._rows.pop(message.request_id, None) is not None:
                self._send([Finish(message.request_id, "cancelled")], [], [])
        elif isinstance(message, Shutdown):
            self._stopping = True

    def _step(self) -> None:
        finished = []
        tokens = []
        names = list(self._rows)
        for name in names:
            row = self._rows[name]
            tokens.append(FIRST_TOKEN + row.token % TOKENS)
            row.token += 1
            row.left -= 1
            if row.left == 0:
                del self._rows[name]
                finished.append(Finish(name, "length"))
        if names:
            self._send(finished, names, tokens)
        self._steps += 1
        self._endpoint.send(
            Gauges(
                at=time.time(),
                waiting=0,
                running=len(self._rows),
                kv_used=0,
                kv_total=1,
                rows_total=ROWS,
                steps=self._steps,
                prefill_tokens=0,
                decode_tokens=0,
                step_seconds=STEP_SECONDS,
            )
        )

    def _send(self, finished: list[Finish], names: list[str], tokens: list[int]) -> None:
        admitted, self._admitted = self._admitted, []
        self._endpoint.send(
            StepOutputs(request_ids=names, token_ids=tokens, admitted=admitted, finished=finished)
        )


def _hello(boot: Boot) -> Hello:
    return Hello(
        architecture="PacedForCausalLM",
        vocab_size=VOCABULARY,
        context_limit=8192,
        eos_ids=[2],
        kv_entries=1,
        entry_tokens=16,
        max_rows=boot.config.max_rows,
        weight_bytes=1,
        kv_bytes=1,
        device="cpu",
        dtype="float32",
        entry_bytes=1,
    )


if __name__ == "__main__":
    engine_endpoint = WorkerEndpoint.from_argv(sys.argv[1:], inbound=ToEngine)
    PacedEngine(engine_endpoint).run()
    engine_endpoint.close()
