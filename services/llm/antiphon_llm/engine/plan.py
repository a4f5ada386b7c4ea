"""What the scheduler decides for one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import torch

from .request import Request, State


class StepClass(StrEnum):
    """Kind of a step; a fact of the plan, not of its row count."""

    DECODE = "decode"
    VERIFY = "verify"
    """Decode rows with drafts."""
    PREFILL = "prefill"


@dataclass(frozen=True, slots=True)
class RowShape:
    """Tokens of one row in one step, and how many of its last ones are drawn from: none of a
    prompt's piece, one of its end, all of a decode row."""

    tokens: int
    draws: int

    @property
    def samples(self) -> bool:
        """Whether the row draws at all."""
        return self.draws > 0


DECODE_ROW = RowShape(1, draws=1)
"""The shape of a decode row without drafts."""


def row_shape(request: Request, tokens: int, depth: int = 0) -> RowShape:
    """The shape of a row that feeds ``tokens``; a wrong number raises.

    DECODE(1), VERIFY(1 + depth) or PREFILL(n).
    """
    if request.state is State.DECODING:
        if tokens != 1 + depth or request.pending != 1:
            raise ValueError(
                f"decode row of {tokens} tokens at draft depth {depth} with {request.pending} "
                "pending"
            )
        return RowShape(tokens, draws=tokens) if depth else DECODE_ROW
    if request.state is State.PREFILLING and 0 < tokens <= request.pending:
        completes = tokens == request.pending
        return RowShape(tokens, draws=int(completes and request.sampler is not None))
    raise ValueError(f"{request.state} row of {tokens} tokens with {request.pending} pending")


@dataclass(slots=True)
class PlannedRow:
    """One request's part of the step: tokens ``start .. start + shape.tokens - 1``.

    A decode row feeds its last committed token and then ``drafts``. Its outputs belong to
    ``epoch`` of the request and are dropped once that has passed.
    """

    request: Request
    start: int
    shape: RowShape
    epoch: int
    drafts: tuple[int, ...] = ()
    """Proposed ids, one less than the row's tokens; -1 is padding, which is never accepted."""
    q: torch.Tensor | None = None
    """fp32 (K or more, V'), what the drafts were drawn from, for residual acceptance."""

    @property
    def end(self) -> int:
        """Written length after the step, refused drafts included."""
        return self.start + self.shape.tokens

    @property
    def proposed(self) -> int:
        """Drafts without the padding."""
        return len(self.drafts) - self.drafts.count(-1)

    @property
    def first_draw(self) -> int:
        """Absolute position of the first token that the row draws."""
        return self.end - self.shape.draws + 1

    @property
    def current(self) -> bool:
        """Whether the request still has the row that this was planned for."""
        return self.epoch == self.request.epoch


@dataclass(slots=True)
class StepPlan:
    """Rows of one step, decode rows first, and what scheduling it changed."""

    number: int = 0
    """Counts plans; steps run and settle in this order."""
    rows: list[PlannedRow] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    parked: list[Request] = field(default_factory=list)
    """Those of ``preempted`` whose keys and values went to host memory."""
    resumed: list[Request] = field(default_factory=list)
    """Those of ``admitted`` that were parked."""
    completed: list[PlannedRow] = field(default_factory=list)
    """Prefill rows that end with the request's last known token."""
    prefill_tokens: int = 0
    decode_tokens: int = 0
    decode_rows: int = 0
    """The first so many rows are decode rows."""
    draft_depth: int = 0
    """Drafts of each decode row, padding included."""
    begun: float = 0.0
    """time.monotonic() when the loop turned to it; set by the loop."""

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return self.prefill_tokens + self.decode_tokens

    @property
    def step_class(self) -> StepClass:
        """PREFILL as soon as one row is a prefill."""
        if self.prefill_tokens:
            return StepClass.PREFILL
        return StepClass.VERIFY if self.draft_depth else StepClass.DECODE

    def add(self, request: Request, tokens: int, drafts: tuple[int, ...] = ()) -> None:
        """Appends one row of whatever shape the request's state has; all decode rows of a step
        have equally many drafts."""
        if request.state is State.DECODING:
            shape = row_shape(request, tokens, len(drafts))
            self.rows.append(PlannedRow(request, request.written, shape, request.epoch, drafts))
            self.decode_tokens += tokens
            self.decode_rows += 1
            self.draft_depth = len(drafts)
        else:
            self.add_prefill(request, tokens)

    def add_prefill(self, request: Request, tokens: int) -> None:
        """Appends one prefill row."""
        row = PlannedRow(request, request.written, row_shape(request, tokens), request.epoch)
        self.rows.append(row)
        self.prefill_tokens += tokens
        if tokens == request.pending:
            self.completed.append(row)
