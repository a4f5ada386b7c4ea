"""What building a model on either kind of device yields."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.pool import KvPool
from antiphon_llm.kvcache.sizing import PoolSize

from .runner import Runner

if TYPE_CHECKING:
    from antiphon_llm.models.decoder import Decoder

Phase = Callable[[str], AbstractContextManager[None]]
"""Marks a boot phase by its name."""


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """A model with its memory and the runner over both."""

    model: Decoder
    tables: BlockTables
    pool: KvPool
    size: PoolSize
    runner: Runner[Any]
    kernels: dict[str, str]
    """Which implementation each operation uses."""
    fallbacks: Callable[[], dict[str, int]]
    """Ways taken because a better one was not there, by name."""
    counters: Callable[[], dict[str, int]]
    """Optional paths by outcome."""
    memory: dict[str, int]
    """Bytes by owner, without the KV pool."""
    affordable_tokens: Callable[[], int | None]
    """Measures for how many tokens in one step there is memory now; None where a step's memory
    was taken at boot."""

    def substitutions(self) -> dict[str, int]:
        """All that the engine chose in place of what it would rather have, by name."""
        narrowed = {"context narrowed": 1} if self.size.narrowed else {}
        return {**self.fallbacks(), **narrowed}
