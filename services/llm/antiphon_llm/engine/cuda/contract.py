"""What the device runner needs of a model, and how it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from antiphon_llm.engine.runner import LayerCache
from antiphon_llm.models.adapters import AdaptedTokens
from antiphon_llm.models.block import AttentionMeta, WantedRows

from .observation import TappedModel


class DeviceModel(TappedModel, Protocol):
    """What the runner needs of a built model."""

    @property
    def vocab_size(self) -> int:
        """Width V of the head."""
        ...

    @property
    def fixed_tokens(self) -> int:
        """Steps of up to so many tokens run in memory that never moves."""
        ...

    @property
    def matrices(self) -> list[torch.Tensor]:
        """Weights that a sleep takes off the device."""
        ...

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        meta: AttentionMeta,
        views: Sequence[LayerCache],
        drawn: torch.Tensor | None = None,
        wanted: WantedRows | None = None,
        adapted: AdaptedTokens | None = None,
    ) -> torch.Tensor:
        """Final hidden states (N, H), or those (R, H) of the wanted tokens alone; ids
        ``-1 - r`` stand for ``drawn[r]``."""
        ...

    def reserve(self, tokens: int) -> None:
        """Takes the memory of the widest step: nothing that a recording works in may move."""
        ...

    def prunes(self, tokens: int, wanted: int) -> bool:
        """Whether a step of so many tokens may name its wanted ones."""
        ...

    def head(self, hidden: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """fp32 logits (R, V) of hidden rows (R, H), written to ``out``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """How a runner runs; sizes in rows and tokens."""

    max_rows: int
    step_tokens: int
    overlap_depth: int = 1
    upload_mode: str = "packed"
    graphs: bool = True
    """Whether decode steps are recorded."""
    prefill_graphs: bool = True
    graph_rows_max: int = 0
    """0 is max_rows."""
    draft_depth: int = 0
    """Most drafts of a row and step."""
    adapter_slots: int = 0
    """Adapters that may be loaded; 0 where none are served."""
    debug: bool = False
    """Checks before each replay that nothing a recording reads has moved."""
