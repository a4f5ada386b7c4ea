"""The attention batches that :mod:`bench.gpu_kernels` times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from antiphon_kernels.paged_attention import launcher, new_workspace, reference

from bench.gpu_kernels import Work, copies

DTYPE = torch.bfloat16
KV_HEADS, HEAD_DIM, BLOCK_TOKENS = 8, 128, 16

PREFILL_SHAPES = (
    launcher.Shape(128, 128, 8, 3),
    launcher.Shape(128, 64, 8, 3),
    launcher.Shape(128, 32, 8, 3, 128),
    launcher.Shape(128, 64, 8, 2, 128),
    launcher.Shape(64, 64, 4, 2),
    launcher.Shape(64, 128, 4, 2),
)
"""Prefill launches worth trying; two programs share a processor at 64 queries or 128 registers."""


def device() -> torch.device:
    """The GPU."""
    return torch.device("cuda", torch.cuda.current_device())


def close(result: torch.Tensor, wanted: torch.Tensor) -> None:
    """Agreement of a bf16 result with its fp32 reference."""
    torch.testing.assert_close(result.float(), wanted.float(), rtol=3e-2, atol=3e-2)


@dataclass
class Pages:
    """Rows of one context length over shuffled pages, with rotating caches."""

    q: torch.Tensor
    caches: list[tuple[torch.Tensor, torch.Tensor]]
    query_start: torch.Tensor
    context_len: torch.Tensor
    block_table: torch.Tensor

    def attend(self, index: int, shape: launcher.Shape | None, **options: Any) -> torch.Tensor:
        """The operation on cache set ``index``, with a tile of its own for sweeps."""
        keys, values = self.caches[index % len(self.caches)]
        fixed = {"sinks": None, "window": 0, "softcap": 0.0}
        return launcher.paged_attention(
            self.q, keys, values, shape=shape, **self.metadata(), **fixed, **options
        )

    def metadata(self) -> dict[str, Any]:
        """Arguments that describe the rows."""
        return {
            "query_start": self.query_start,
            "context_len": self.context_len,
            "block_table": self.block_table,
            "block_tokens": BLOCK_TOKENS,
            "scale": HEAD_DIM**-0.5,
        }


def pages(rows: int, queries: int, context: int, heads: int) -> Pages:
    """Random pages; the first rows' queries are the last tokens of their contexts."""
    blocks = -(-context // BLOCK_TOKENS)
    kv_bytes = rows * context * KV_HEADS * HEAD_DIM * 4
    shape = ((rows * blocks + 1) * BLOCK_TOKENS, KV_HEADS, HEAD_DIM)
    table = 1 + torch.randperm(rows * blocks, device=device()).view(rows, blocks)
    return Pages(
        q=torch.randn(rows * queries, heads, HEAD_DIM, device=device(), dtype=DTYPE),
        caches=[
            (
                torch.randn(shape, device=device(), dtype=DTYPE),
                torch.randn(shape, device=device(), dtype=DTYPE),
            )
            for _ in range(copies(kv_bytes))
        ],
        query_start=torch.arange(rows + 1, device=device(), dtype=torch.int32) * queries,
        context_len=torch.full((rows,), context, device=device(), dtype=torch.int32),
        block_table=table.int(),
    )


def decode_works() -> Iterator[Work]:
    """One query per row at several loads."""
    for heads, rows, context in (
        (32, 1, 640),
        (32, 8, 640),
        (32, 256, 640),
        (32, 1, 8192),
        (32, 8, 8192),
        (16, 1, 640),
    ):
        yield decode_work(heads, rows, context)


def prefill_works() -> Iterator[Work]:
    """Whole prompts, the last chunk of a long one, and steps that many prompts share."""
    for rows, queries, context in ((1, 2048, 2048), (4, 2048, 2048), (1, 2048, 8192)):
        yield prefill_work(32, rows, queries, context)
    for heads, context in product((32, 16), (256, 1024, 2048)):
        yield prefill_work(heads, 64, 256, context)


def decode_work(heads: int, rows: int, context: int) -> Work:
    """One query per row over its whole context."""
    batch = pages(rows, 1, context, heads)
    workspace = new_workspace(heads, KV_HEADS, HEAD_DIM, 1, device())
    out = torch.empty_like(batch.q)
    options = {"max_query": 1, "max_context": context, "workspace": workspace, "out": out}
    keys, values = batch.caches[0]

    @cache
    def wanted() -> torch.Tensor:
        return reference.paged_attention(batch.q, keys, values, **batch.metadata())

    def call(index: int, shape: launcher.Shape | None = None) -> torch.Tensor:
        return batch.attend(index, shape, **options)

    shapes = [
        launcher.Shape(16, keys, warps, stages)
        for keys, warps, stages in product((32, 64, 128), (2, 4), (2, 3, 4))
    ]
    dense_q = batch.q.view(rows, 1, heads, HEAD_DIM).transpose(1, 2)
    dense_k, dense_v = (
        torch.randn(rows, KV_HEADS, context, HEAD_DIM, device=device(), dtype=DTYPE)
        for _ in range(2)
    )
    return Work(
        name=f"decode {heads} heads {rows} rows x {context}",
        call=call,
        nbytes=rows * context * KV_HEADS * HEAD_DIM * 4 + 2 * batch.q.nbytes,
        operations=4 * rows * context * heads * HEAD_DIM,
        check=lambda result: close(result, wanted()),
        peer=lambda _: F.scaled_dot_product_attention(dense_q, dense_k, dense_v, enable_gqa=True),
        variants={str(shape): partial(call, shape=shape) for shape in shapes},
    )


def prefill_work(heads: int, rows: int, queries: int, context: int) -> Work:
    """Chunks of ``queries`` tokens that end at ``context``."""
    batch = pages(rows, queries, context, heads)
    out = torch.empty_like(batch.q)
    options = {
        "max_query": queries, "max_context": context, "workspace": None, "out": out,
    }  # fmt: skip
    keys, values = batch.caches[0]

    @cache
    def wanted() -> torch.Tensor:
        return reference.paged_attention(batch.q, keys, values, **batch.metadata())

    def call(index: int, shape: launcher.Shape | None = None) -> torch.Tensor:
        return batch.attend(index, shape, **options)

    variants: dict[str, Callable[[int], object]] = {
        str(shape): partial(call, shape=shape) for shape in PREFILL_SHAPES
    }
    whole = queries == context
    dense_q, dense_k, dense_v = (
        torch.randn(rows, count, context, HEAD_DIM, device=device(), dtype=DTYPE)
        for count in (heads, KV_HEADS, KV_HEADS)
    )
    seen = queries * (context - queries) + queries * (queries + 1) / 2
    return Work(
        name=f"prefill {heads} heads {rows} x {queries} of {context}",
        call=call,
        nbytes=0.0,
        operations=4 * rows * seen * heads * HEAD_DIM,
        check=lambda result: close(result, wanted()),
        peer=(
            lambda _: F.scaled_dot_product_attention(
                dense_q, dense_k, dense_v, is_causal=True, enable_gqa=True
            )
        )
        if whole
        else None,
        variants=variants,
    )
