"""What building a model on either kind of device yields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from antiphon_core.logs import get_logger

from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.fields import FieldSpec, entry_bytes
from antiphon_llm.kvcache.pool import KvPool
from antiphon_llm.kvcache.sizing import PoolSize, PoolTooSmall, size_pool
from antiphon_llm.messages import EngineConfig
from antiphon_llm.speculation.drafter import Drafter

from .runner import Runner

if TYPE_CHECKING:
    from antiphon_llm.models.decoder import Decoder

_log = get_logger(__name__)

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
    drafter: Drafter | None = None
    """What the runner shows its steps to."""

    def substitutions(self) -> dict[str, int]:
        """All that the engine chose in place of what it would rather have, by name."""
        narrowed = {"context narrowed": 1} if self.size.narrowed else {}
        return {**self.fallbacks(), **narrowed}


class MemoryLedger(Protocol):
    """Who takes how much of a device's or this machine's memory."""

    @property
    def kv_room(self) -> int:
        """Bytes that the KV pool and its safety margin may take."""
        ...

    def table(self) -> str:
        """One line for each owner."""
        ...


def size_of_pool(
    config: EngineConfig, model: Decoder, ledger: MemoryLedger, fields: Sequence[FieldSpec]
) -> PoolSize:
    """Entries of these fields for what the ledger leaves; a narrowed context is logged.

    Raises PoolTooSmall with the memory's table when no pool fits, or when a configured size
    does not.
    """
    try:
        size = size_pool(
            entry_bytes=entry_bytes(fields),
            entry_tokens=config.entry_tokens,
            max_rows=config.max_rows,
            model_limit=model.spec.context_limit,
            context_limit=config.context_limit,
            kv_entries=config.kv_entries,
            available_bytes=ledger.kv_room,
            memory_share=1.0,
        )
    except PoolTooSmall as refusal:
        raise PoolTooSmall(f"{refusal}\n{ledger.table()}") from refusal
    if size.narrowed:
        _log.warning(
            "context_narrowed",
            context_limit=size.context_limit,
            model_limit=model.spec.context_limit,
            kv_entries=size.entries,
        )
    return size
