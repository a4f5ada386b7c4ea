"""How many entries the pool gets, and the context limit that follows."""

from __future__ import annotations

from dataclasses import dataclass

SAFETY_BYTES = 256 << 20
"""Left free beside the pool for activations and the rest of the machine."""


class PoolTooSmall(ValueError):
    """The memory, or a typed number, cannot hold what was asked for."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """``entries`` usable entries, and the longest request that they can hold alone."""

    entries: int
    context_limit: int
    narrowed: bool
    """The limit was taken below the model's own, because the pool does not hold more."""


def size_pool(
    *,
    entry_bytes: int,
    entry_tokens: int,
    max_rows: int,
    model_limit: int,
    context_limit: int,
    kv_entries: int,
    available_bytes: int,
    memory_share: float,
) -> PoolSize:
    """Entries from a typed number or from free memory; the context limit from both.

    ``kv_entries`` or ``context_limit`` 0 is automatic. An automatic pool is no larger than
    ``max_rows`` full contexts. A typed context limit that does not fit raises PoolTooSmall
    with the largest that would; an automatic one narrows.
    """
    if context_limit > model_limit:
        raise PoolTooSmall(
            f"context_limit {context_limit} exceeds the model's own limit {model_limit}"
        )
    wanted = context_limit or model_limit
    useful = max_rows * -(-wanted // entry_tokens)
    room = int(memory_share * available_bytes) - SAFETY_BYTES
    affordable = room // entry_bytes - 1
    entries = kv_entries or min(useful, affordable)
    if entries < 1 or entries > affordable:
        raise PoolTooSmall(
            f"the KV pool needs {(max(entries, 1) + 1) * entry_bytes} bytes "
            f"({entry_bytes} per entry); available are {max(room, 0)}"
        )
    fits = entries * entry_tokens
    if fits >= wanted:
        return PoolSize(entries, wanted, narrowed=False)
    if context_limit:
        raise PoolTooSmall(
            f"context_limit {context_limit} does not fit {entries} KV entries of "
            f"{entry_tokens} tokens; the largest that fits is {fits}"
        )
    return PoolSize(entries, fits, narrowed=True)
