"""Decode and prefill time of the CPU kernels on the real shapes of the two default models.

Prints, for each model, the time of all matrix products of one step at several row counts, the
share of this machine's measured read bandwidth that the packed bytes reach, and torch's fp32
``F.linear`` on the same shapes in the same run. ``--attention`` adds the attention op.

    python bench/kernels_cpu.py [--threads 2] [--isa avx2] [--products int16] [--rows 1 8 256]
        [--attention]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import antiphon_kernels
import torch
import torch.nn.functional as F
from antiphon_kernels.cpu import library
from antiphon_kernels.paged_attention import paged_attention
from antiphon_kernels.paged_attention.cases import Batch, Case, build
from antiphon_kernels.quant_linear import PackedWeight, dequantise, pack, quant_linear
from antiphon_kernels.quant_linear.cases import GEMMA3_270M, SMOLLM2, ModelShape, random_blocks


@dataclass(frozen=True)
class Layer:
    """One weight with its distinct copies, so that layers do not stay in the cache."""

    copies: list[PackedWeight]
    head: bool


def milliseconds(run: Callable[[], object], repeats: int) -> float:
    """The median wall time of a call."""
    run()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2] * 1000


def with_torch_threads(threads: int, run: Callable[[], object], repeats: int) -> float:
    """:func:`milliseconds` with all threads for torch, which has one beside native kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return milliseconds(run, repeats)
    finally:
        torch.set_num_threads(before)


def read_bandwidth(threads: int) -> float:
    """GB/s of summing 512 MB, the memory roofline of a decode step."""
    block = torch.ones(128 * 2**20)
    return block.nbytes / with_torch_threads(threads, block.sum, 7) / 1e6


def copy_of(weight: PackedWeight) -> PackedWeight:
    codes, high_bits, scales, mins = (
        None if part is None else part.clone() for part in weight.parts
    )
    assert codes is not None
    return PackedWeight(weight.kind, weight.shape, codes, high_bits, scales, mins)


def load(shapes: tuple[ModelShape, ...]) -> list[Layer]:
    layers = []
    for entry in shapes:
        blocks = random_blocks(entry.kind, entry.shape, scale=0.01)
        first = pack(blocks, entry.kind, (entry.shape.rows, entry.shape.columns))
        others = [copy_of(first) for _ in range(entry.layers - 1)]
        layers.append(Layer([first, *others], entry.name == "lm_head"))
    return layers


def step(layers: list[Layer], rows: int, head_rows: int) -> Callable[[], None]:
    """All products of one step; the head runs on the sampled rows only."""
    inputs = {
        (layer.copies[0].shape[1], layer.head): torch.randn(
            head_rows if layer.head else rows, layer.copies[0].shape[1]
        )
        for layer in layers
    }
    depth = max(len(layer.copies) for layer in layers)

    def run() -> None:
        for index in range(depth):
            for layer in layers:
                if index < len(layer.copies):
                    weight = layer.copies[index]
                    quant_linear(inputs[weight.shape[1], layer.head], weight)

    return run


def dense_step(layers: list[Layer], rows: int, head_rows: int) -> Callable[[], None]:
    """The same products by torch in fp32; one dense copy per shape is enough to be kind to it."""
    products = [
        (
            torch.randn(head_rows if layer.head else rows, layer.copies[0].shape[1]),
            dequantise(layer.copies[0]),
            len(layer.copies),
        )
        for layer in layers
    ]

    def run() -> None:
        for x, weight, count in products:
            for _ in range(count):
                F.linear(x, weight)

    return run


def report(name: str, shapes: tuple[ModelShape, ...], row_counts: list[int], peak: float) -> None:
    """Prints one line for each row count."""
    layers = load(shapes)
    held = sum(weight.nbytes for layer in layers for weight in layer.copies)
    print(f"{name}: {held / 1e6:.0f} MB packed")
    for rows in row_counts:
        head_rows = rows if rows <= 16 else 1
        repeats = 15 if rows <= 16 else 3
        own = milliseconds(step(layers, rows, head_rows), repeats)
        dense = with_torch_threads(
            antiphon_kernels.threads(), dense_step(layers, rows, head_rows), 3
        )
        rate = held / own / 1e6
        print(
            f"  M={rows:4d}  {own:8.2f} ms  {rows / own * 1000:7.0f} tok/s  "
            f"{rate:5.1f} GB/s = {rate / peak:4.0%} of read bandwidth   "
            f"F.linear fp32 {dense:8.2f} ms ({dense / own:4.2f} x)"
        )


def report_attention() -> None:
    for name, heads, kv_heads, dim, layers in (
        ("SmolLM2", 9, 3, 64, 30),
        ("Gemma 3", 4, 1, 256, 18),
    ):
        for row in ((1, 128), (1, 1024), (512, 512)):
            batch = build(Case(rows=(row,), heads=heads, kv_heads=kv_heads, head_dim=dim))

            def attend(batch: Batch = batch) -> None:
                paged_attention(batch.q, batch.k_cache, batch.v_cache, **batch.metadata)

            spent = milliseconds(attend, 9)
            print(f"  attention {name} {row}: {spent * layers:.2f} ms for {layers} layers")


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the CPU kernels on real shapes.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--isa", default="", help="avx512, avx2 or portable; the best by default")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 8, 256])
    parser.add_argument("--attention", action="store_true")
    parser.add_argument("--products", default="auto", choices=("float32", "int16", "auto"))
    options = parser.parse_args()
    antiphon_kernels.set_threads(options.threads)
    peak = read_bandwidth(options.threads)
    chosen = options.isa or (native.isa if (native := library.native()) else "reference")
    with library.use(chosen):
        antiphon_kernels.set_products(options.products)
        running = antiphon_kernels.implementations()["quant_linear"]
        print(f"{running}, {options.threads} threads, read bandwidth {peak:.1f} GB/s")
        report("SmolLM2-135M Q4_1", SMOLLM2, options.rows, peak)
        report("Gemma 3 270M Q4_K_M", GEMMA3_270M, options.rows, peak)
        if options.attention:
            report_attention()


if __name__ == "__main__":
    main()
