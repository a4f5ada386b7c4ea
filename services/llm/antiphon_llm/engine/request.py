"""One live request: its tokens, its state and what happened when."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from antiphon_llm.messages import TopLogprobs
from antiphon_llm.sampler.row import SamplerRow


class State(StrEnum):
    """Where a request stands; preemption leads back to QUEUED."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.PREFILLING, State.FINISHED}),
    State.PREFILLING: frozenset({State.DECODING, State.QUEUED, State.FINISHED}),
    State.DECODING: frozenset({State.QUEUED, State.FINISHED}),
    State.FINISHED: frozenset(),
}


class IllegalTransition(RuntimeError):
    """A state change that the table does not allow: a defect of the engine."""


@dataclass(slots=True)
class PooledVector:
    """Running sum, or last row, of a sequence's final hidden states."""

    mean: bool
    normalise: bool
    total: np.ndarray | None = None
    """fp64 (H)."""


@dataclass(slots=True)
class Timings:
    """time.monotonic() seconds; 0 where the moment has not come."""

    submitted: float
    admitted: float = 0.0
    first_token: float = 0.0


@dataclass(slots=True, eq=False)
class Request:
    """A sequence that is generated or embedded. Compared by identity.

    ``tokens`` holds the prompt and then the output; ``written`` of them have their keys and
    values in the pool. A decoding request's last token is drawn but not yet written.
    """

    request_id: str
    sequence: int
    """Arrival number; the queue's order."""
    tokens: list[int]
    prompt_length: int
    max_tokens: int
    timings: Timings
    interactive: bool = True
    deadline: float = 0.0
    """time.time() seconds; 0 is none."""
    sampler: SamplerRow | None = None
    pooled: PooledVector | None = None
    stop_ids: frozenset[int] = frozenset()
    prompt_logprobs: int = -1
    scored: list[TopLogprobs | None] = field(default_factory=list)
    """Prompt log-probabilities collected so far, the first token's None included."""
    scores_sent: bool = False
    state: State = State.QUEUED
    row: int = -1
    """Row of the block tables, -1 without one."""
    written: int = 0
    preemptions: int = 0

    def move(self, state: State) -> None:
        """Changes the state; a change outside the table raises IllegalTransition."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"{self.request_id}: {self.state} to {state}")
        self.state = state

    @property
    def outputs(self) -> int:
        """Tokens drawn so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are not in the pool yet."""
        return len(self.tokens) - self.written
