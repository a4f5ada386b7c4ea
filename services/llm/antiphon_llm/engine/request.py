"""One live request: its tokens, its state and what happened when."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import torch

from antiphon_llm.messages import TopLogprobs
from antiphon_llm.sampler.row import SamplerRow

from .readout import PooledVector, Pooling


class State(StrEnum):
    """Where a request stands; preemption leads back to QUEUED.

    DEFERRED waits for a recurrent state row and holds nothing; PARKED has its keys and
    values in host memory.
    """

    QUEUED = "queued"
    DEFERRED = "deferred"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PARKED = "parked"
    FINISHED = "finished"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.DEFERRED, State.PREFILLING, State.FINISHED}),
    State.DEFERRED: frozenset({State.PREFILLING, State.FINISHED}),
    State.PREFILLING: frozenset({State.DECODING, State.QUEUED, State.PARKED, State.FINISHED}),
    State.DECODING: frozenset({State.QUEUED, State.PARKED, State.FINISHED}),
    State.PARKED: frozenset({State.PREFILLING, State.FINISHED}),
    State.FINISHED: frozenset(),
}


class IllegalTransition(RuntimeError):
    """A state change that the table does not allow: a defect of the engine."""


@dataclass(slots=True)
class Timings:
    """time.monotonic() seconds; 0 where the moment has not come."""

    submitted: float
    admitted: float = 0.0
    first_token: float = 0.0


@dataclass(slots=True, eq=False)
class Request:
    """A sequence that is generated or embedded. Compared by identity.

    ``tokens`` holds the committed ids: the prompt and then the output. ``written`` positions
    have their keys and values in the pool, or a launched step is writing them. A launched
    step may have drawn tokens that the host has not read: they count in ``ahead`` until
    ``commit``. A decoding request's last token is drawn but not yet written. While a step with
    drafts runs, both count as if it accepted them all; its ``trim`` takes back the rest.
    """

    request_id: str
    sequence: int
    """Arrival number; the queue's order."""
    tokens: list[int]
    prompt_length: int
    max_tokens: int
    timings: Timings
    interactive: bool = True
    tenant: str = ""
    adapter: str = ""
    adapter_version: int = 0
    adapter_slot: int = 0
    """Of the model's adapters; 0 is the model itself."""
    cache: bool = True
    """False neither reads nor writes the prefix cache."""
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
    settled: int = 0
    """Written positions whose step has been collected: no launched step writes them."""
    ahead: int = 0
    """Tokens that launched steps drew and that are not committed."""
    drafts: list[int] = field(default_factory=list)
    """Tokens proposed for its next decode row, until that is planned or the row is lost."""
    draft_q: torch.Tensor | None = None
    """fp32 (drafts, V'), what they were drawn from where residual acceptance is to use it; valid
    as long as they are."""
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    epoch: int = 0
    """Counts losses of the row. What a step computed for an older epoch is dropped; draws
    are counter-based, so drawing again gives the same token."""
    cached_tokens: int = 0
    """Prompt tokens that the first admission found in the prefix cache."""
    preemptions: int = 0
    length_limit: int = 0
    """Length at which it ends at the latest; set when it is queued. This and the following
    belong to the scheduler."""
    room: int = 0
    """Positions that the entries of its row can take."""
    promised: int = 0
    """Entries that it may still take without asking."""
    planned: int = 0
    """Number of the last plan with a row of it."""
    launched: int = 0
    """Number of the last launched plan with a row of it."""
    prefix_root: bytes = b""
    prefix_keys: list[bytes] = field(default_factory=list)
    """Prefix tree keys of its full entries; only ever appended to, as its tokens are."""
    parked: int | None = None
    """Handle of its keys and values in host memory."""
    parked_length: int = 0
    """Positions that they cover."""
    behind: bytes = b""
    """Key of a leader that it waits for."""
    leads: bytes = b""
    """Key that waiting requests find it by while it computes a prefix that they share."""

    def move(self, state: State) -> None:
        """Changes the state; a change outside the table raises IllegalTransition."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"{self.request_id}: {self.state} to {state}")
        self.state = state

    def commit(self, token: int) -> None:
        """Appends a drawn token that ``ahead`` counted."""
        self.tokens.append(token)
        self.ahead -= 1

    def trim(self, refused: int) -> None:
        """Takes back what the last ``refused`` draft tokens of a collected step wrote."""
        self.written -= refused
        self.ahead -= refused

    def lose_row(self) -> None:
        """Forgets everything that was tied to the row: preemption, parking and the end."""
        self.row = -1
        self.written = self.settled = self.ahead = 0
        self.drafts, self.draft_q = [], None
        self.epoch += 1
        if self.pooled is not None:
            self.pooled.total = None

    @property
    def draft_room(self) -> int:
        """Most drafts of its next decode row: the last token that it may have is drawn."""
        return max(0, self.length_limit - self.length - 1)

    @property
    def reads_prompt(self) -> bool:
        """Whether hidden states of its prompt are read that no draw needs."""
        return self.pooled is not None or self.prompt_logprobs >= 0

    @property
    def reads_whole_prompt(self) -> bool:
        """Whether the hidden states of all its prompt's tokens are read."""
        pooled = self.pooled is not None and self.pooled.readout.pooling is not Pooling.LAST
        return pooled or self.prompt_logprobs >= 0

    @property
    def length(self) -> int:
        """Tokens of the sequence, those not committed yet included."""
        return len(self.tokens) + self.ahead

    @property
    def outputs(self) -> int:
        """Tokens committed behind the prompt."""
        return len(self.tokens) - self.prompt_length

    @property
    def pending(self) -> int:
        """Tokens whose keys and values no launched step has written."""
        return len(self.tokens) + self.ahead - self.written
