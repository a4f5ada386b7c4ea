"""Batches for tests and benchmarks of paged attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """One batch; ``rows`` holds (query count, context length) of each row."""

    rows: tuple[tuple[int, int], ...]
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    block_tokens: int = 16
    window: int = 0
    softcap: float = 0.0

    def __str__(self) -> str:
        rows = "_".join(f"{count}of{context}" for count, context in self.rows)
        shape = f"h{self.heads}-{self.kv_heads}x{self.head_dim}b{self.block_tokens}"
        return f"{rows}-{shape}w{self.window}c{self.softcap:g}"


CASES = (
    Case(rows=((1, 1),)),
    Case(rows=((1, 700), (1, 33), (1, 512), (1, 513))),
    Case(rows=((1, 40), (17, 17), (64, 200), (0, 5))),
    Case(rows=((1, 1300), (70, 600)), heads=4, kv_heads=1, head_dim=256, window=512),
    Case(rows=((3, 50), (40, 40)), heads=4, kv_heads=2, head_dim=80, window=7, softcap=20.0),
    Case(rows=((5, 9),), heads=2, kv_heads=2, head_dim=20),
    Case(rows=((33, 129), (1, 2)), heads=8, kv_heads=8, head_dim=8, block_tokens=1),
    Case(rows=((2, 1030), (130, 1040)), heads=8, kv_heads=1, head_dim=128, block_tokens=32),
    Case(rows=((5, 645), (1, 70)), heads=4, kv_heads=1, head_dim=32),
    Case(rows=((5, 300),), heads=4, kv_heads=1, head_dim=64, window=100),
    Case(rows=((4, 4), (1, 100)), heads=3, kv_heads=1, head_dim=512, softcap=50.0),
)


@dataclass
class Batch:
    """Tensors of one case: arguments of ``paged_attention``."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    metadata: dict[str, Any]


def build(case: Case, seed: int = 0) -> Batch:
    """Random tensors for a case over shuffled blocks; slots that no row owns hold NaN."""
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-context // case.block_tokens) for _, context in case.rows]
    blocks = 1 + torch.randperm(sum(needed) + 2, generator=generator)
    table = torch.zeros(len(case.rows), max(needed) + 1, dtype=torch.int32)
    shape = (int(blocks.max() + 1) * case.block_tokens, case.kv_heads, case.head_dim)
    k_cache = torch.full(shape, float("nan"))
    v_cache = torch.full(shape, float("nan"))
    taken = 0
    for row, ((_, context), count) in enumerate(zip(case.rows, needed, strict=True)):
        table[row, :count] = blocks[taken : taken + count]
        taken += count
        position = torch.arange(context)
        slots = table[row].long()[position // case.block_tokens] * case.block_tokens
        slots += position % case.block_tokens
        k_cache[slots] = torch.randn(context, *shape[1:], generator=generator)
        v_cache[slots] = torch.randn(context, *shape[1:], generator=generator)
    counts = torch.tensor([0, *(count for count, _ in case.rows)], dtype=torch.int32)
    return Batch(
        q=torch.randn(int(counts.sum()), case.heads, case.head_dim, generator=generator) * 2,
        k_cache=k_cache,
        v_cache=v_cache,
        metadata={
            "query_start": counts.cumsum(0).int(),
            "context_len": torch.tensor([c for _, c in case.rows], dtype=torch.int32),
            "block_table": table,
            "block_tokens": case.block_tokens,
            "scale": case.head_dim**-0.5,
            "window": case.window,
            "softcap": case.softcap,
        },
    )
