"""What the client saw of one request."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from bench.load.workload import Job

Outcome = Literal["completed", "cancelled", "failed", "lost"]
"""completed: its terminal came. cancelled: the client left as planned. failed: ended by an error
with a reason. lost: the stream ended, or fell silent, without a terminal or a status."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The terminal of a request; counts are None where the server sends none."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    queued_s: float | None = None
    """The server's own account of the wait, where it gives one."""


class RequestFailed(Exception):
    """The server ended a request with an error.

    Args:
        reason: machine-readable, such as QUEUE_FULL; an HTTP status where there is nothing better.
        message: for people.
        status: the gRPC or HTTP status.
        retry_after: seconds after which the server invites a retry; None without an invitation.
    """

    def __init__(
        self, reason: str, message: str, status: str, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.status = status
        self.retry_after = retry_after


@dataclass(slots=True)
class Record:
    """One request as the client saw it. Times are ``time.perf_counter()`` seconds."""

    job: Job
    sent: float
    """When the request was handed to the target."""
    due: float
    """When it should have been sent; the same but for an overloaded generator."""
    arrivals: list[float] = field(default_factory=list)
    """One per piece."""
    pieces: list[int] = field(default_factory=list)
    """Tokens of each piece."""
    outcome: Outcome = "lost"
    finish_reason: str = ""
    """As the server names it, such as length or FINISH_REASON_LENGTH."""
    ended: Ended | None = None
    failure: RequestFailed | None = None
    done: float = 0.0
    streamed_tokens: int = 0
    """Tokens that the pieces covered."""

    def piece(self, tokens: int) -> None:
        """Output arrived."""
        self.arrivals.append(time.perf_counter())
        self.pieces.append(tokens)
        self.streamed_tokens += tokens

    @property
    def leaves(self) -> bool:
        """Whether the client has seen as much as it wants and goes away."""
        return self.job.cancel_after is not None and self.streamed_tokens >= self.job.cancel_after

    @property
    def output_tokens(self) -> int:
        """The server's total where it gave one, else what was streamed."""
        if self.ended is not None and self.ended.output_tokens is not None:
            return self.ended.output_tokens
        return self.streamed_tokens

    @property
    def ttft(self) -> float | None:
        """Seconds from sending to the first piece."""
        return self.arrivals[0] - self.sent if self.arrivals else None

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first piece: (last - first arrival) / tokens between.

        A first piece of several tokens is taken out whole, so that tokens which waited together
        are not counted as produced in no time. None below two pieces.
        """
        if len(self.arrivals) < 2:
            return None
        later = self.output_tokens - self.pieces[0]
        return (self.arrivals[-1] - self.arrivals[0]) / later if later > 0 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between neighbouring pieces: what a reader waits."""
        return [later - earlier for earlier, later in pairwise(self.arrivals)]
