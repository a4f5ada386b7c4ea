"""The operations and shapes that :mod:`bench.gpu_kernels` times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import product

import torch
import torch.nn.functional as F
from antiphon_kernels.embedding import embedding
from antiphon_kernels.gated_activation import silu_mul
from antiphon_kernels.publish import Destinations, publish
from antiphon_kernels.publish.cases import pack
from antiphon_kernels.qk_rope_store import qk_rope_store
from antiphon_kernels.rms_norm import add_rms_norm, rms_norm
from antiphon_kernels.small_linear import fuses
from antiphon_kernels.small_linear import kernel as linear_kernel
from antiphon_kernels.small_linear import reference as linear_reference
from antiphon_kernels.small_linear.cases import QWEN3_06B, QWEN3_8B, Case, build

from bench.gpu_attention import (
    DTYPE,
    HEAD_DIM,
    KV_HEADS,
    close,
    decode_works,
    device,
    prefill_works,
)
from bench.gpu_kernels import Work, copies


def linear_works() -> Iterator[Work]:
    """Every product of both models, with what is folded into it; cuBLAS does the product only."""
    for model, layers, row_counts in (("8b", QWEN3_8B, (1, 8)), ("0.6b", QWEN3_06B, (1,))):
        for layer, rows in product(layers, row_counts):
            yield linear_work(f"{model} {layer.name} {rows} rows", replace(layer.case, rows=rows))


def linear_work(name: str, case: Case) -> Work:
    """One product over rotating copies of its weight."""
    weight_bytes = case.outputs * case.depth * 2
    base = build(case, DTYPE, device())
    weights = [base.weight, *(base.weight.clone() for _ in range(copies(weight_bytes) - 1))]
    width = case.outputs // 2 if case.activation else case.outputs
    out = torch.empty(case.rows, width, dtype=DTYPE, device=device())

    def call(index: int, shape: linear_kernel.Shape | None = None) -> torch.Tensor:
        return linear_kernel.small_linear(
            base.x,
            weights[index % len(weights)],
            base.bias,
            base.norm_weight,
            1e-6,
            case.plus_one,
            case.activation,
            base.residual,
            out,
            shape,
        )

    @cache
    def wanted() -> torch.Tensor:
        return linear_reference.small_linear(
            base.x,
            base.weight,
            base.bias,
            norm_weight=base.norm_weight,
            eps=1e-6,
            activation=case.activation,
            residual=base.residual,
        )

    return Work(
        name=f"linear {name}",
        call=call,
        nbytes=weight_bytes,
        operations=2 * case.rows * case.outputs * case.depth,
        check=lambda result: close(result, wanted()),
        peer=lambda index: F.linear(base.x, weights[index % len(weights)]),
        variants={repr(shape): partial(call, shape=shape) for shape in linear_shapes(case)},
    )


def linear_shapes(case: Case) -> Iterator[linear_kernel.Shape]:
    """Tiles worth trying, by the loads in flight of a thread or of a program."""
    factor = 2 if case.activation else 1
    if not fuses(case.rows, case.outputs, norm=case.norm, activation=case.activation is not None):
        return
    if case.rows == 1:
        for outputs, depth, warps in product((2, 4, 8, 16), (256, 512, 1024, 2048), (1, 2, 4, 8)):
            loads = factor * outputs * depth / (32 * warps * 8)
            if 4 <= loads <= 8 and depth <= case.depth:
                yield linear_kernel.Shape(outputs, depth, warps)
        return
    for outputs, depth, warps, stages in product(
        (16, 32, 64), (128, 256, 512), (2, 4, 8), (3, 4, 6)
    ):
        staged = (factor * outputs + 16) * depth * 2 * (stages - 1)
        if 32 * 1024 <= staged <= 100 * 1024 and outputs >= 8 * warps:
            yield linear_kernel.Shape(outputs, depth, warps, stages)


def rotating(make: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Copies of a tensor, together larger than the cache."""
    first = make()
    return [first, *(torch.clone(first) for _ in range(copies(first.nbytes) - 1))]


def row_works() -> Iterator[Work]:
    """What runs between the products."""
    for rows in (1, 256, 4096):
        yield fused_work(rows)
    hidden, wide = 4096, 12288
    x = rotating(lambda: torch.randn(4096, hidden, device=device(), dtype=DTYPE))
    weight = torch.ones(hidden, device=device())
    out, total = torch.empty_like(x[0]), torch.empty_like(x[0])
    yield Work(
        "rms_norm 4096 x 4096",
        lambda i: rms_norm(x[i % len(x)], weight, 1e-6, out=out),
        2 * x[0].nbytes,
        peer=lambda i: F.rms_norm(x[i % len(x)], (hidden,), weight.to(DTYPE), 1e-6),
    )
    yield Work(
        "add_rms_norm 4096 x 4096",
        lambda i: add_rms_norm(x[i % len(x)], x[-1 - i % len(x)], weight, 1e-6, out=(out, total)),
        4 * x[0].nbytes,
    )
    gate = rotating(lambda: torch.randn(4096, 2 * wide, device=device(), dtype=DTYPE))
    opened = torch.empty(4096, wide, device=device(), dtype=DTYPE)
    yield Work(
        "silu_mul 4096 x 12288",
        lambda i: silu_mul(gate[i % len(gate)], out=opened),
        1.5 * gate[0].nbytes,
        peer=lambda i: F.silu(gate[i % len(gate)][:, :wide]) * gate[i % len(gate)][:, wide:],
    )
    yield embedding_work(hidden)
    yield publish_work()


def fused_work(rows: int) -> Work:
    """Norms, rotation and store of Qwen3-8B's qkv rows."""
    heads = 32
    width = (heads + 2 * KV_HEADS) * HEAD_DIM
    qkv = rotating(lambda: torch.randn(rows, width, device=device(), dtype=DTYPE))
    cache = torch.zeros(2, rows + 16, KV_HEADS, HEAD_DIM, device=device(), dtype=DTYPE)
    angles = torch.randn(4096, HEAD_DIM // 2, device=device())
    weight = torch.ones(HEAD_DIM, device=device())
    positions = torch.arange(rows, device=device(), dtype=torch.int32)
    slots = torch.randperm(rows, device=device()) + 16

    def call(index: int) -> None:
        qk_rope_store(
            qkv[index % len(qkv)],
            cache[0],
            cache[1],
            heads=heads,
            positions=positions,
            write_slot=slots,
            cos=angles,
            sin=angles,
            q_weight=weight,
            k_weight=weight,
            eps=1e-6,
        )

    return Work(f"qk_rope_store {rows} rows", call, 2 * rows * width * 2)


def embedding_work(hidden: int) -> Work:
    """Eight decode tokens, all still on the device."""
    table = torch.randn(151936, hidden, device=device(), dtype=DTYPE)
    ids = -1 - torch.arange(8, device=device(), dtype=torch.int32)
    drawn = torch.arange(64, device=device()) * 1000
    out = torch.empty(8, hidden, device=device(), dtype=DTYPE)
    return Work("embedding 8 rows", lambda _: embedding(ids, table, drawn, out=out), 4 * out.nbytes)


def publish_work() -> Work:
    """A decode step's data at 64 rows: ids, positions, lengths, slots and tables."""
    sizes = (256, 256, 260, 256, 512, 64 * 256 * 4)
    tensors = [torch.zeros(size, dtype=torch.uint8, device=device()) for size in sizes]
    group = Destinations(tensors)
    payloads = [torch.ones(size, dtype=torch.uint8) for size in sizes]
    arena = pack(group, payloads).to(device())
    return Work("publish 6 members of 67 KB", lambda _: publish(arena, group), 2 * sum(sizes))


GROUPS: dict[str, Callable[[], Iterator[Work]]] = {
    "linear": linear_works,
    "decode": decode_works,
    "prefill": prefill_works,
    "rows": row_works,
}
