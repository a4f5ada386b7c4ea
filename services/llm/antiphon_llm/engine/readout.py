"""What is read off a sequence's final hidden states in place of drawing: vectors and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch


class Pooling(StrEnum):
    """Which final hidden states (behind the last norm) stand for a sequence."""

    MEAN = "mean"
    LAST = "last"
    CLS = "cls"
    """The first."""


@dataclass(frozen=True, slots=True)
class DenseStage:
    """A linear map behind the pooling, as sentence-transformers' Dense module describes it.

    Attributes:
        weight: fp32 (out, in).
        bias: fp32 (out) or None.
        tanh: whether the outputs go through tanh.
    """

    weight: np.ndarray
    bias: np.ndarray | None = None
    tanh: bool = False

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """fp64 (in) to fp64 (out)."""
        product = self.weight @ values
        if self.bias is not None:
            product = product + self.bias
        return np.tanh(product) if self.tanh else product


@dataclass(frozen=True, slots=True)
class Readout:
    """From a sequence's states to the numbers that its caller gets.

    Attributes:
        pooling: see ``Pooling``.
        stages: applied to the pooled state, in order.
        softcap: ``c * tanh(x / c)`` on what they give, as on logits; 0 is none.
        normalise: bring the result to unit length.
    """

    pooling: Pooling = Pooling.LAST
    stages: Sequence[DenseStage] = ()
    softcap: float = 0.0
    normalise: bool = True

    @property
    def width(self) -> int:
        """Numbers of the result; 0 for the model's hidden size."""
        return len(self.stages[-1].weight) if self.stages else 0

    def __call__(self, pooled: np.ndarray) -> list[float]:
        """fp64 (H) to the result, rounded to fp32."""
        for stage in self.stages:
            pooled = stage(pooled)
        if self.softcap:
            pooled = self.softcap * np.tanh(pooled / self.softcap)
        if self.normalise:
            pooled = pooled / max(float(np.linalg.norm(pooled)), 1e-12)
        return pooled.astype(np.float32).tolist()


@dataclass(slots=True)
class PooledVector:
    """The running pool of a sequence whose prompt is computed in chunks."""

    readout: Readout
    total: np.ndarray | None = None
    """fp64 (H): the sum so far, or the state that stands for the sequence."""

    def add(self, part: np.ndarray) -> None:
        """Takes the next chunk's part, see ``pool``."""
        if self.total is None:
            self.total = part
        elif self.readout.pooling is Pooling.MEAN:
            self.total = self.total + part
        elif self.readout.pooling is Pooling.LAST:
            self.total = part

    def read(self, length: int) -> list[float]:
        """The result, once all ``length`` tokens are in."""
        assert self.total is not None
        mean = self.readout.pooling is Pooling.MEAN
        return self.readout(self.total / length if mean else self.total)


def pool(states: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """One chunk's part, fp64 (H), of its final hidden states (N, H), on their device."""
    if pooling is Pooling.MEAN:
        return states.double().sum(0)
    return states[-1 if pooling is Pooling.LAST else 0].double()
