"""What the scheduler decides for one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from .request import Request, State


class StepClass(StrEnum):
    """Kind of a step; a fact of the plan, not of its row count."""

    DECODE = "decode"
    PREFILL = "prefill"


@dataclass(frozen=True, slots=True)
class RowShape:
    """Tokens of one row in one step, and whether its last one is drawn from."""

    tokens: int
    samples: bool


DECODE_ROW = RowShape(1, samples=True)
"""The shape of every decode row."""


def row_shape(request: Request, tokens: int) -> RowShape:
    """The shape of a row that feeds ``tokens``: DECODE(1) or PREFILL(n); a wrong n raises."""
    if request.state is State.DECODING:
        if tokens != 1 or request.pending != 1:
            raise ValueError(f"decode row of {tokens} tokens with {request.pending} pending")
        return DECODE_ROW
    if request.state is State.PREFILLING and 0 < tokens <= request.pending:
        completes = tokens == request.pending
        return RowShape(tokens, samples=completes and request.sampler is not None)
    raise ValueError(f"{request.state} row of {tokens} tokens with {request.pending} pending")


@dataclass(slots=True)
class PlannedRow:
    """One request's part of the step: tokens ``start .. start + shape.tokens - 1``.

    Its outputs belong to ``epoch`` of the request and are dropped once that has passed.
    """

    request: Request
    start: int
    shape: RowShape
    epoch: int

    @property
    def end(self) -> int:
        """Written length after the step."""
        return self.start + self.shape.tokens

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

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return self.prefill_tokens + self.decode_tokens

    @property
    def step_class(self) -> StepClass:
        """PREFILL as soon as one row is a prefill."""
        return StepClass.PREFILL if self.prefill_tokens else StepClass.DECODE

    def add(self, request: Request, tokens: int) -> None:
        """Appends one row of whatever shape the request's state has."""
        if request.state is State.DECODING:
            shape = row_shape(request, tokens)
            self.rows.append(PlannedRow(request, request.written, shape, request.epoch))
            self.decode_tokens += tokens
        else:
            self.add_prefill(request, tokens)

    def add_prefill(self, request: Request, tokens: int) -> None:
        """Appends one prefill row."""
        row = PlannedRow(request, request.written, row_shape(request, tokens), request.epoch)
        self.rows.append(row)
        self.prefill_tokens += tokens
        if tokens == request.pending:
            self.completed.append(row)
