"""Drawing draft tokens: the one draw rule over a drafter's logits.

A draft is drawn with the settings, penalties and rules of its request, as if the drafts before
it were output, and under match acceptance with the very noise of the target's draw at its
position. Two draws that share their noise agree wherever the distributions do, at a rate of at
least (1 - TV) / (1 + TV) ("Coupling without communication and drafter-invariant speculative
decoding", 2024). Under residual acceptance drafts have noise of their own, and the distribution
that they were drawn from goes with them ("Fast inference from transformers via speculative
decoding", 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from antiphon_llm.sampler.draw import pick
from antiphon_llm.sampler.filters import surviving_ids
from antiphon_llm.sampler.philox import NoiseClass
from antiphon_llm.sampler.row import SamplerRow

from .accept import distribution


class Guesses:
    """Draws the next draft of each row.

    Args:
        distributions: where drafts are for residual acceptance, most rows, their depth and V: so
            much fp32 host memory is taken for what they are drawn from.
        on_device: the logits lie elsewhere than in host memory: rows that only want the largest
            one find it there, the others' are copied.

    Attributes:
        copied: rows whose logits were copied to the host.
    """

    def __init__(
        self,
        *,
        distributions: tuple[int, int, int] | None = None,
        on_device: bool = False,
    ) -> None:
        self._residual = distributions is not None
        self._q = None if distributions is None else torch.zeros(distributions)
        self._on_device = on_device
        self.copied = 0

    @property
    def fallbacks(self) -> dict[str, int]:
        """Rows that could not be drawn where their logits are, by name."""
        return {"draft: drawn on the host": self.copied} if self.copied else {}

    def distributions(self, rows: int, depth: int) -> torch.Tensor | None:
        """Zeroed fp32 (rows, depth, V) for ``draw`` to fill, valid until the next call; None where
        acceptance needs none."""
        return None if self._q is None else self._q[:rows, :depth].zero_()

    def draw(
        self,
        logits: torch.Tensor,
        samplers: Sequence[SamplerRow],
        positions: Sequence[int],
        chains: Sequence[Sequence[int]],
        q: Sequence[np.ndarray] | None = None,
    ) -> list[int]:
        """One id for each row, -1 where none can be drawn.

        Args:
            logits: fp32 (R, V), the drafter's, behind each row's chain; left unchanged.
            samplers: state of the requests, as committed.
            positions: absolute positions of the tokens being drawn.
            chains: the drafts of each row so far.
            q: with residual acceptance, zeroed fp32 (V) of each row, which takes the
                distribution that its token was drawn from.
        """
        tokens = [-1] * len(samplers)
        rest = list(range(len(samplers)))
        if self._on_device and q is None and any(row.untouched for row in samplers):
            tokens = logits.argmax(dim=1).tolist()
            rest = [place for place in rest if not samplers[place].untouched]
        if not rest:
            return tokens
        if self._on_device:
            self.copied += len(rest)
            logits = logits[rest].cpu()
        host = logits.numpy()
        for row, place in enumerate(rest):
            kept = None if q is None else q[place]
            tokens[place] = self._one(
                host[row], samplers[place], positions[place], chains[place], kept
            )
        return tokens

    def _one(
        self,
        raw: np.ndarray,
        sampler: SamplerRow,
        position: int,
        chain: Sequence[int],
        q: np.ndarray | None,
    ) -> int:
        rules = sampler.window(chain) if sampler.constrained else None
        scores = sampler.adjusted(raw, ahead=chain, window=rules)
        best = int(scores.argmax())
        if not np.isfinite(scores[best]):
            return -1
        token = best
        if sampler.noisy:
            source = sampler.noise_key(position)
            # A row whose caller named the seed is accepted by match, which wants the very noise.
            if self._residual and not sampler.sampling.seeded:
                source = replace(source, noise_class=NoiseClass.DRAFT)
            token = pick(scores, sampler, source)
        if q is not None:
            _fill(q, scores, sampler, best)
        return token


def _fill(q: np.ndarray, scores: np.ndarray, sampler: SamplerRow, best: int) -> None:
    """Fills zeroed ``q`` with the probabilities that a draw from ``scores`` has."""
    if not sampler.noisy:
        q[best] = 1.0
        return
    kept = surviving_ids(scores, top_k=sampler.top_k, top_p=sampler.top_p, min_p=sampler.min_p)
    q[:] = distribution(scores, kept)
