"""A drafter that knows the text, and is right as often as it is told to be."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from antiphon_llm.engine.plan import StepPlan
from antiphon_llm.engine.request import Request
from antiphon_llm.engine.runner import StepResult
from antiphon_llm.speculation.drafter import Proposal

MAX_DEPTH = 15


class Scripted:
    """Proposes the known continuation, each token right with the same chance."""

    name = "scripted"
    max_depth = MAX_DEPTH
    wants_hidden = False
    tap_layers: tuple[int, ...] = ()

    def __init__(self, text: Sequence[int], chance: float, vocabulary: int) -> None:
        self._text = text
        self._chance = chance
        self._vocabulary = vocabulary
        self._random = random.Random(5)

    def expects(self, requests: Sequence[Request]) -> list[bool]:
        """Always."""
        return [True] * len(requests)

    def draft(self, requests: Sequence[Request], depth: int) -> Proposal:
        """What follows in the text, or a neighbouring id."""
        return Proposal([self._propose(request, depth) for request in requests])

    def observe(
        self,
        plan: StepPlan,
        hidden: torch.Tensor | None,
        taps: Mapping[int, torch.Tensor],
        result: StepResult,
    ) -> None:
        """Nothing is learnt."""

    def release(self, request: Request) -> None:
        """Nothing is held."""

    def warmup(self) -> None:
        """Nothing is to be warmed."""

    def predict_bytes(self, *, max_rows: int, entries: int) -> int:
        """Nothing is taken."""
        return 0

    def _propose(self, request: Request, depth: int) -> list[int]:
        right = self._text[request.outputs : request.outputs + depth]
        return [
            token if self._random.random() < self._chance else (token + 1) % self._vocabulary
            for token in right
        ]
