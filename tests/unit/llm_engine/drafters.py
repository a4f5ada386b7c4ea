"""Drafters that know the answer, and use it well or badly."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from antiphon_llm.engine.plan import StepPlan
from antiphon_llm.engine.request import Request
from antiphon_llm.engine.runner import StepResult
from antiphon_llm.sampler.philox import NoiseClass, gumbel_noise_all
from antiphon_llm.speculation.drafter import Proposal

MAX_DEPTH = 7


class Oracle:
    """Proposes what the plain run drew: everything is accepted."""

    name = "oracle"
    max_depth = MAX_DEPTH
    wants_hidden = False
    tap_layers: tuple[int, ...] = ()

    def __init__(self, answers: Mapping[str, Sequence[int]], vocabulary: int = 64) -> None:
        self._answers = answers
        self._vocabulary = vocabulary
        self.observed = 0
        self.released: list[str] = []

    def expects(self, requests: Sequence[Request]) -> list[bool]:
        return [True] * len(requests)

    def draft(self, requests: Sequence[Request], depth: int) -> Proposal:
        return Proposal([self._propose(request, depth) for request in requests])

    def observe(
        self,
        plan: StepPlan,
        hidden: torch.Tensor | None,
        taps: Mapping[int, torch.Tensor],
        result: StepResult,
    ) -> None:
        self.observed += 1

    def release(self, request: Request) -> None:
        self.released.append(request.request_id)

    def warmup(self) -> None: ...

    def predict_bytes(self, *, max_rows: int, entries: int) -> int:
        return 0

    def _propose(self, request: Request, depth: int) -> list[int]:
        answer = self._answers.get(request.request_id, ())
        return list(answer[request.outputs : request.outputs + depth])


class Adversary(Oracle):
    """Proposes anything but the answer: nothing is accepted."""

    name = "adversary"

    def _propose(self, request: Request, depth: int) -> list[int]:
        right = super()._propose(request, depth)
        return [(token + 1) % self._vocabulary for token in right]


class Coin(Oracle):
    """Proposals of any length in which every token is right or wrong by the toss of a coin."""

    name = "coin"

    def _propose(self, request: Request, depth: int) -> list[int]:
        chance = random.Random(f"{request.request_id} {request.outputs}")
        right = super()._propose(request, chance.randint(0, depth))
        return [
            token if chance.random() < 0.7 else chance.randrange(self._vocabulary)
            for token in right
        ]


class Sampled(Oracle):
    """Draws its drafts from one distribution, whatever the text, and tells it."""

    name = "sampled"

    def __init__(self, q: Sequence[float]) -> None:
        super().__init__({})
        self._q = np.array(q, dtype=np.float32)

    def draft(self, requests: Sequence[Request], depth: int) -> Proposal:
        q = torch.from_numpy(np.tile(self._q, (len(requests), depth, 1)))
        return Proposal([self._propose(request, depth) for request in requests], q)

    def _propose(self, request: Request, depth: int) -> list[int]:
        assert request.sampler is not None
        tokens = []
        for place in range(depth):
            key = request.sampler.noise_key(len(request.tokens) + place)
            noise = gumbel_noise_all(replace(key, noise_class=NoiseClass.DRAFT), len(self._q))
            tokens.append(int((np.log(self._q) + noise).argmax()))
        return tokens
