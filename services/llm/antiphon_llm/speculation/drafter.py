"""What the engine needs of whatever proposes tokens ahead of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from antiphon_llm.engine.plan import StepPlan
    from antiphon_llm.engine.request import Request
    from antiphon_llm.engine.runner import StepResult


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that may follow what each request has committed."""

    tokens: list[list[int]]
    """For each request at most ``depth`` ids; empty where there is nothing to propose."""
    q: torch.Tensor | None = None
    """fp32 (requests, depth, V'), the distribution that each token was drawn from, after
    temperature and filters; V' may be narrower than the model's head. None is a point mass."""


class Drafter(Protocol):
    """Proposes the next tokens of decoding requests.

    ``draft`` and ``release`` are called between steps on the loop's thread, ``observe`` by the
    runner. No step is in flight during ``draft``, and all drawn tokens are committed.
    """

    @property
    def name(self) -> str:
        """ngram, model, mtp or eagle3."""
        ...

    @property
    def max_depth(self) -> int:
        """Most tokens that ``draft`` can propose for one request."""
        ...

    @property
    def wants_hidden(self) -> bool:
        """Whether ``observe`` needs the model's hidden states."""
        ...

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """Layers whose output ``observe`` needs besides."""
        ...

    def expects(self, requests: Sequence[Request]) -> list[bool]:
        """For each request whether a proposal is likely once the step in flight is committed.

        Asked while one is, whose tokens are not in ``request.tokens`` yet; the loop waits for it
        where that pays. Drafters that always propose say so for all.
        """
        ...

    def draft(self, requests: Sequence[Request], depth: int) -> Proposal:
        """Proposes up to ``depth`` tokens behind ``request.tokens`` of each request.

        A failure costs the step its drafts: what the drafter keeps must stay usable.
        """
        ...

    def observe(
        self,
        plan: StepPlan,
        hidden: torch.Tensor | None,
        taps: Mapping[int, torch.Tensor],
        result: StepResult,
    ) -> None:
        """Follows a step, prompts' pieces included, once its draws are known.

        ``hidden`` is (N, H), the step's tokens in the plan's order before the final norm, where
        ``wants_hidden``; ``taps`` has (N, H) of each of ``tap_layers``. Both are valid during the
        call. Nothing of the step has been committed: a row's accepted drafts are one less than
        its draws.
        """
        ...

    def release(self, request: Request) -> None:
        """Forgets a request that has ended."""
        ...

    def warmup(self) -> None:
        """Does at boot what the first ``draft`` would have to."""
        ...

    def predict_bytes(self, *, max_rows: int, entries: int) -> int:
        """Bytes of the model's device beside weights that so many rows and KV entries take."""
        ...
