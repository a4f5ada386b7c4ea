# pyright: reportAttributeAccessIssue=false
# Triton does not declare its CUDA extras.
"""Device functions that the stages of the draw share: a row's logits, its phase, the best of it."""

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
def load_logits(logits, stride, row, columns, vocabulary):
    """fp32 logits of a row, -inf behind its end."""
    start = logits + row.to(tl.int64) * stride
    return tl.load(start + columns, mask=columns < vocabulary, other=float("-inf")).to(tl.float32)


@triton.jit
def load_ahead(logits, stride, row, columns, vocabulary, wanted):
    """As ``load_logits`` where ``wanted``; nothing is read where not."""
    return load_logits(logits, stride, row, columns, tl.where(wanted, vocabulary, 0))


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
