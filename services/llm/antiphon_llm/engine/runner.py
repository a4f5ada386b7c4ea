"""Runs one planned step: batch, forward, head on the rows that are read, draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from antiphon_llm.messages import TopLogprobs
from antiphon_llm.sampler.draw import Draw, draw
from antiphon_llm.sampler.logprobs import scored_token

from .batch import BatchBuilder, StepBatch
from .plan import PlannedRow, StepPlan
from .request import Request

_SCORE_TILE = 16
"""Prompt positions that go through the head together when their log-probabilities are read."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, each ``(slots, kv_heads, head_dim)``."""

    keys: torch.Tensor
    values: torch.Tensor


class ForwardModel(Protocol):
    """What the runner needs of a built model."""

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
    ) -> torch.Tensor:
        """Final hidden states (N, H) of the batch's tokens; writes their keys and values.

        The result is valid until the next call.
        """
        ...

    def head(self, hidden: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """fp32 logits (R, V) of hidden rows (R, H), written to ``out`` and returned."""
        ...


@dataclass(slots=True)
class StepResult:
    """What a step computed, for ``commit`` to apply."""

    draws: list[tuple[Request, Draw]] = field(default_factory=list)
    scored: list[tuple[Request, list[TopLogprobs]]] = field(default_factory=list)
    """Log-probabilities of further prompt tokens, in order."""
    pooled: list[tuple[Request, np.ndarray]] = field(default_factory=list)
    """fp64 (H): the chunk's sum, or its last row, by the request's pooling."""


class Runner:
    """Owns the step's buffers; holds no request state."""

    def __init__(
        self,
        model: ForwardModel,
        views: Sequence[LayerCache],
        builder: BatchBuilder,
        *,
        max_rows: int,
    ) -> None:
        self._model = model
        self._views = views
        self._builder = builder
        logits = torch.empty((max(max_rows, _SCORE_TILE), model.vocab_size))
        self._logits = [logits[:rows] for rows in range(len(logits) + 1)]
        """By row count: a decode step calls no torch operation, not even for a view."""
        self._host_logits = [rows.numpy() for rows in self._logits]

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Feeds the plan's tokens and draws where a row samples; changes no request."""
        batch = self._builder.build(plan)
        hidden = self._model.forward(batch.input_ids, batch.positions, batch, self._views)
        result = StepResult()
        end = 0
        for row in plan.rows:
            begin, end = end, end + row.shape.tokens
            if row.request.pooled is not None:
                pooled = _pooled(hidden[begin:end], row.request.pooled.mean)
                result.pooled.append((row.request, pooled))
            elif row.request.prompt_logprobs >= 0:
                scored = self._score_prompt(row, hidden[begin:end])
                result.scored.append((row.request, scored))
        sampling = [row.request for row in plan.rows if row.shape.samples]
        if sampling:
            result.draws = list(zip(sampling, self._draw(hidden, batch, sampling), strict=True))
        return result

    def _draw(self, hidden: torch.Tensor, batch: StepBatch, requests: list[Request]) -> list[Draw]:
        rows = len(requests)
        if rows != hidden.shape[0]:
            hidden = hidden.index_select(0, batch.sample_index)
        self._model.head(hidden, self._logits[rows])
        samplers = [request.sampler for request in requests if request.sampler is not None]
        positions = [len(request.tokens) for request in requests]
        return draw(self._host_logits[rows], samplers, positions)

    def _score_prompt(self, row: PlannedRow, hidden: torch.Tensor) -> list[TopLogprobs]:
        """Scores the prompt tokens that this chunk's rows predict and that are not scored yet."""
        request = row.request
        first = max(row.start + 1, len(request.scored))
        last = min(row.end + 1, request.prompt_length)
        scored: list[TopLogprobs] = []
        for start in range(first, last, _SCORE_TILE):
            end = min(start + _SCORE_TILE, last)
            rows = hidden[start - 1 - row.start : end - 1 - row.start]
            self._model.head(rows, self._logits[end - start])
            logits = self._host_logits[end - start]
            scored.extend(
                scored_token(
                    logits[target - start], request.tokens[target], request.prompt_logprobs
                )
                for target in range(start, end)
            )
        return scored


def _pooled(rows: torch.Tensor, mean: bool) -> np.ndarray:
    return (rows.double().sum(0) if mean else rows[-1].double()).numpy()
