"""What bounds a step and the queues, and how a refusal at a bound is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KV_HELD_LIMIT = 0.9
"""Share of the entries that requests may hold before work that would wait is refused."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of a step, of the queues and of who may hold what. 0 where a limit says so."""

    max_rows: int
    step_tokens: int
    prefill_chunk: int
    entry_tokens: int
    queue_limit: int
    batch_rows_max: int = 0
    """Rows that batch requests may hold together; 0 is max_rows."""
    batch_tokens_max: int = 0
    """Tokens of a step of batch requests, which an interactive arrival waits out; 0 is
    prefill_chunk. A step takes one entry's worth of prefill beside its decode rows anyway."""
    tenant_rows_max: int = 0
    """Rows that one tenant may hold within a class; 0 is max_rows."""
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    """Share of a tenant's admissions within its class; 1 where not named."""

    def __post_init__(self) -> None:
        for name in ("max_rows", "prefill_chunk", "entry_tokens", "queue_limit"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, most in (
            ("batch_rows_max", self.max_rows),
            ("tenant_rows_max", self.max_rows),
            ("batch_tokens_max", self.step_tokens),
        ):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must lie between 0 and {most}, got {getattr(self, name)}")
        for tenant, weight in self.tenant_weights.items():
            if not 0.01 <= weight <= 100.0:
                raise ValueError(
                    f"tenant_weights[{tenant!r}] must lie between 0.01 and 100, got {weight}"
                )
        if self.step_tokens < self.max_rows + self.entry_tokens:
            raise ValueError(
                f"step_tokens {self.step_tokens} must be at least max_rows + entry_tokens = "
                f"{self.max_rows + self.entry_tokens}, or prefills would never advance"
            )

    def most_tokens(self, interactive: bool, chunk: int) -> int:
        """Tokens of a step of the class, with ``chunk`` as the bound of one prefill now."""
        if interactive:
            return self.step_tokens
        return min(self.batch_tokens_max or chunk, self.step_tokens)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request cannot be queued: an ErrorReason name without prefix, the limit and what
    was seen instead."""

    reason: str
    limit: float
    observed: float
    message: str

    def __str__(self) -> str:
        return f"{self.message}: limit {self.limit:g}, observed {self.observed:g}"
