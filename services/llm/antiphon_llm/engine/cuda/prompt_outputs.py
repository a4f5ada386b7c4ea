"""What a step yields of its prompt rows beside drawn tokens: pooled states, prompt scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from antiphon_llm.engine.plan import PlannedRow
from antiphon_llm.engine.readout import pool
from antiphon_llm.engine.runner import ScoredChunk, StepResult
from antiphon_llm.messages import TopLogprobs
from antiphon_llm.sampler.device_scores import LARGEST_TOP, read_scores, scores

from .readback import Readback

_SCORE_TILE = 64
"""Prompt positions that go through the head together; bounds the logits that this takes."""


class Head(Protocol):
    """A model's output projection."""

    @property
    def vocab_size(self) -> int:
        """Width V."""
        ...

    def head(self, hidden: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """fp32 logits (R, V) of hidden rows (R, H), written to ``out``."""
        ...


@dataclass(slots=True)
class PromptOutputs:
    """One step's pooled vectors and prompt scores, on their way to the host."""

    _pooled: list[tuple[PlannedRow, np.ndarray]] = field(default_factory=list)
    _scored: list[tuple[PlannedRow, int, list[int], list[np.ndarray]]] = field(default_factory=list)

    def enqueue(
        self,
        rows: Sequence[PlannedRow],
        hidden: torch.Tensor,
        head: Head,
        readback: Readback,
    ) -> None:
        """Reads what the rows ask for off their final hidden states (N, H)."""
        end = 0
        for row in rows:
            begin, end = end, end + row.shape.tokens
            pooled = row.request.pooled
            if pooled is not None:
                vector = pool(hidden[begin:end], pooled.readout.pooling)
                self._pooled.append((row, readback.copy(vector)))
            elif row.request.prompt_logprobs >= 0:
                self._score(row, hidden[begin:end], head, readback)

    def collect(self, result: StepResult) -> None:
        """Hands the results over, after the step's copies have arrived."""
        result.pooled = [(row, vector.copy()) for row, vector in self._pooled]
        for row, first, targets, tiles in self._scored:
            width = row.request.prompt_logprobs
            table = np.concatenate(tiles) if tiles else np.zeros((0, 1))
            items = [
                _item(target, values, width) for target, values in zip(targets, table, strict=True)
            ]
            result.scored.append(ScoredChunk(row, first, items))

    def _score(self, row: PlannedRow, hidden: torch.Tensor, head: Head, readback: Readback) -> None:
        """Scores the prompt tokens that this chunk predicts and that are not scored yet."""
        request = row.request
        first = max(row.start + 1, len(request.scored))
        last = min(row.end + 1, request.prompt_length)
        targets = request.tokens[first:last]
        tiles: list[np.ndarray] = []
        for start in range(first, last, _SCORE_TILE):
            end = min(start + _SCORE_TILE, last)
            states = hidden[start - 1 - row.start : end - 1 - row.start]
            logits = torch.empty(
                (end - start, head.vocab_size), dtype=torch.float32, device=hidden.device
            )
            head.head(states, logits)
            tokens = torch.tensor(request.tokens[start:end], device=hidden.device)
            tiles.append(readback.copy(scores(logits, tokens)))
        self._scored.append((row, first, targets, tiles))


def _item(target: int, values: np.ndarray, width: int) -> TopLogprobs:
    """The given token first, then the best ones."""
    logprob, best = read_scores(values, min(width, LARGEST_TOP))
    return TopLogprobs([target, *best.token_ids], [logprob, *best.logprobs], best.rank)
