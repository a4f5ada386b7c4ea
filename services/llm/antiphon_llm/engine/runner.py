"""What the loop needs of whatever computes steps, and what a step yields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import torch

from antiphon_llm.kvcache.pool import KvPool
from antiphon_llm.kvcache.row_map import RowMap
from antiphon_llm.messages import TopLogprobs
from antiphon_llm.models.adapters import AdaptedTokens
from antiphon_llm.models.block import WantedRows
from antiphon_llm.sampler.draw import Draw

from .batch import StepBatch
from .plan import PlannedRow, StepPlan


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """Log-probabilities of the prompt tokens ``first .. first + len(items) - 1`` of a row."""

    row: PlannedRow
    first: int
    items: list[TopLogprobs]


@dataclass(slots=True)
class StepResult:
    """What a step computed, for the commit to apply. Rows are those of the step's plan."""

    draws: list[tuple[PlannedRow, list[Draw]]] = field(default_factory=list)
    """The tokens that each sampling row emits, in the plan's order: one, or with drafts the
    accepted ones and the one drawn behind them. An error is the last of its row."""
    scored: list[ScoredChunk] = field(default_factory=list)
    pooled: list[tuple[PlannedRow, np.ndarray]] = field(default_factory=list)
    """fp64 (H): the chunk's part, by the request's pooling."""
    drafter_error: Exception | None = None
    """What the drafter failed with when it was shown the step."""


class InFlight(Protocol):
    """A step that was launched and not collected."""

    @property
    def plan(self) -> StepPlan:
        """What the step runs."""
        ...


Flight = TypeVar("Flight", bound=InFlight)


class Runner(Protocol[Flight]):
    """Runs planned steps, in the order of their launch.

    The runner owns the last token drawn for each row of the block tables: an input id
    ``-1 - row`` stands for it. Sampler state that follows drawn tokens is advanced here, by
    what each row emits. Drafts are accepted here too: with drafts ``d1 .. dK`` of a row, ``y0``
    is drawn behind its last token and ``yp`` behind ``dp``; ``y0 .. yn`` are emitted, where n
    counts the leading ``p`` with ``yp == d(p+1)``.
    """

    def launch(self, plan: StepPlan) -> Flight:
        """Starts a step and returns without waiting for its tokens.

        Changes no request. Whatever it raises, nothing was started and nothing is held.
        """
        ...

    def finish(self, flight: Flight) -> None:
        """Lets the draws of a launched step go on that depend on committed tokens.

        Called once for each flight, when every step before it has been committed: at depth 0
        between ``launch`` and ``collect``. Waits for nothing on the device. What fails here is
        raised by ``collect``.
        """
        ...

    def collect(self, flight: Flight) -> StepResult:
        """Waits for this step alone; each flight is collected once, the oldest first.

        Raises what the step failed with. Its buffers are free again in either case.
        """
        ...

    def sleep(self) -> int:
        """Gives memory back while no step is in flight; returns how many bytes.

        The keys and values are lost; the weights are kept where there is room for them.
        """
        ...

    def wake(self) -> None:
        """Undoes ``sleep``; raises, and stays asleep, when the memory is not there."""
        ...

    def close(self) -> None:
        """Ends what the runner started; a flight that was not collected is lost."""
        ...


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, each ``(slots, kv_heads, head_dim)``."""

    keys: torch.Tensor
    values: torch.Tensor


def layer_caches(rows: RowMap, pool: KvPool) -> list[LayerCache]:
    """Each layer's keys and values as slots of the pool, in the order of the layers."""
    return [LayerCache(*rows.bind(pool, module)) for module in rows]


class ForwardModel(Protocol):
    """What a runner needs of a built model."""

    @property
    def vocab_size(self) -> int:
        """Width V of the head."""
        ...

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        meta: StepBatch,
        views: Sequence[LayerCache],
        *,
        wanted: WantedRows | None = None,
        adapted: AdaptedTokens | None = None,
    ) -> torch.Tensor:
        """Final hidden states (N, H) of the batch's tokens, or (R, H) of the wanted ones alone;
        writes keys and values of all.

        The result is valid until the next call.
        """
        ...

    def prunes(self, tokens: int, wanted: int) -> bool:
        """Whether a step of so many tokens may name its wanted ones."""
        ...

    def residual(self, tokens: int) -> torch.Tensor:
        """(N, H) of the last forward, which fed N tokens, before the final norm; valid until
        the next call of ``forward``."""
        ...

    def tapped(self, tokens: int) -> Mapping[int, torch.Tensor]:
        """(N, H) of the last forward by the layers that are tapped; valid as ``residual``."""
        ...

    def head(self, hidden: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """fp32 logits (R, V) of hidden rows (R, H), written to ``out`` and returned."""
        ...
