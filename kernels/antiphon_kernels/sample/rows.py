# pyright: reportAttributeAccessIssue=false
# Triton does not declare its CUDA extras.
# pyright: reportGeneralTypeIssues=false
# Triton declares functions that return tuples as returning nothing.
"""Device functions that the stages of the draw share: a row's logits, its phase, the best of it.

A row's logits are read through its *source*: (logits, vocabulary), and the row's bits behind them
in a kernel with a mask.
"""

from __future__ import annotations

import triton
import triton.language as tl

DONE = tl.constexpr(0)
"""Nothing is left to do for the row."""
COLLECT = tl.constexpr(1)
"""Its candidates are to be collected."""
SEARCH = tl.constexpr(2)
"""Its cut is to be found in a histogram."""
DRAW = tl.constexpr(3)
"""Its cut is known, and the whole row is to be drawn from."""


@triton.jit
def is_counted(top_k, vocabulary):
    """Whether top_k cuts anything."""
    return (top_k > 0) & (top_k < vocabulary)


@triton.jit
def row_of(rows, place):
    """The row that a program works on: that of its place among the masked ones, if there are."""
    row = place
    if rows is not None:
        row = tl.load(rows + place)
    return row


@triton.jit
def source_of(logits, stride, vocabulary, row, bits, words, place):
    """The source of a row; its mask is the one at ``place``."""
    start = logits + row.to(tl.int64) * stride
    return (start, vocabulary) if bits is None else (start, vocabulary, bits + place * words)


@triton.jit
def load_block(source, start, BLOCK: tl.constexpr):
    """fp32 logits (BLOCK) from ``start`` on, a multiple of 32; -inf where barred or at the end."""
    offsets = tl.arange(0, BLOCK)
    columns = start + offsets
    inside = columns < source[1]
    values = tl.load(source[0] + columns, mask=inside, other=float("-inf")).to(tl.float32)
    if len(source) == 3:
        # Both loads are under way at once: a draw is bound by its arithmetic, not by memory.
        places = start // 32 + tl.arange(0, BLOCK // 32)
        words = tl.load(source[2] + places, mask=places * 32 < source[1], other=0)
        words = tl.reshape(tl.broadcast_to(words[:, None], [BLOCK // 32, 32]), [BLOCK])
        values = tl.where(((words >> (offsets & 31)) & 1) != 0, values, float("-inf"))
    return values


@triton.jit
def load_ahead(source, start, wanted, BLOCK: tl.constexpr):
    """As ``load_block`` where ``wanted``; nothing is read where not."""
    vocabulary = tl.where(wanted, source[1], 0)
    ahead = (source[0], vocabulary) if len(source) == 2 else (source[0], vocabulary, source[2])
    return load_block(ahead, start, BLOCK)


@triton.jit
def without_nan(values):
    """(values with -inf for NaN, int32 1 where one was NaN)."""
    nan = values != values
    return tl.where(nan, float("-inf"), values), nan.to(tl.int32)


@triton.jit
def over_temperature(values, temperature):
    """IEEE quotients; those by 1 are the values themselves."""
    if temperature != 1.0:
        values = tl.math.div_rn(values, temperature)
    return values


@triton.jit
def best_of(scores, columns):
    """(largest score, lowest column that has it)."""
    highest = tl.max(scores, 0)
    return highest, tl.min(tl.where(scores == highest, columns, 0x7FFFFFFF), 0)


@triton.jit
def is_last(arrivals):
    """Whether this program is the last of its row's; what the others stored is visible then."""
    tl.debug_barrier()
    last = tl.atomic_add(arrivals, 1) == tl.num_programs(0) - 1
    if last:
        tl.store(arrivals, 0)
    return last


@triton.jit
def begin(EARLY: tl.constexpr):
    """Waits for the kernels before, and lets the next one's programs come to this point."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
