# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false
# Triton declares neither its CUDA extras, nor the options of a launch, nor constexpr arguments, nor
# that a range can be iterated.
"""Residual quantisation on CUDA: one launch a level, the codebook spread over all processors.

A program holds some entries of the level's book in registers, asked for before the wait for the
level before. The level's winner is the least of packed (distance, code) words, met by atomics:
which program comes first changes nothing, and equal distances leave the lowest code. Every
program subtracts the winner of the level before itself; that is cheaper than another launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from antiphon_kernels.launch import early_launch

UNDECIDED = torch.iinfo(torch.int64).max
CODE_BITS = 0xFFFFFFFF

PROGRAMS = 128
"""Parts that a book is divided into, where they have at least ``LEAST_CODES`` entries."""

LEAST_CODES, MOST_CODES = 4, 16
MOST_ROWS = 32
"""Rows of a program."""

GROUP = 4
"""Rows that meet the program's entries together."""


@triton.jit
def _packed(distance, code):
    """int64 words whose order is that of (distance, code)."""
    # 0.0 is added so that both zeros are one.
    bits = (distance + 0.0).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | code.to(tl.int64)


@triton.jit
def _meet(residual, entries, norm, code, size, row, rows, winners):
    """Notes the nearest of a program's entries for a few rows (R, BLOCK_DIM)."""
    products = tl.sum(residual[:, None, :] * entries[None, :, :], axis=2)
    words = _packed(norm[None, :] - 2.0 * products, code[None, :])
    words = tl.where((code < size)[None, :], words, 0x7FFFFFFFFFFFFFFF)
    tl.atomic_min(winners + row, tl.min(words, axis=1), mask=row < rows, sem="relaxed")


@triton.jit(do_not_specialize=["level", "rows", "before_row"])
def _level(
    before, after, books, norms, winners, level, rows, before_row, size, dim,
    FIRST: tl.constexpr, EARLY: tl.constexpr, BLOCK_ROWS: tl.constexpr, GROUP_ROWS: tl.constexpr,
    BLOCK_CODES: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """The winners (rows) of one level; residuals ``before`` it were those of the level before."""
    code = tl.program_id(0) * BLOCK_CODES + tl.arange(0, BLOCK_CODES)
    column = tl.arange(0, BLOCK_DIM)
    book = books + tl.cast(level, tl.int64) * size * dim
    inside = (code < size)[:, None] & (column < dim)[None, :]
    entries = tl.load(book + code[:, None] * dim + column[None, :], inside, other=0.0)
    norm = tl.load(norms + level * size + code, code < size, other=0.0)
    begin = tl.program_id(1) * BLOCK_ROWS
    row = begin + tl.arange(0, BLOCK_ROWS)
    inside = (row < rows)[:, None] & (column < dim)[None, :]
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    residual = tl.load(before + row[:, None] * before_row + column[None, :], inside, other=0.0)
    found = winners + tl.cast(level, tl.int64) * rows
    if not FIRST:
        nearest = tl.load(found - rows + row, row < rows, other=0) & 0xFFFFFFFF
        place = book - size * dim + nearest[:, None] * dim + column[None, :]
        residual -= tl.load(place, inside, other=0.0)
    if BLOCK_ROWS == GROUP_ROWS:
        if tl.program_id(0) == 0:
            tl.store(after + row[:, None] * dim + column[None, :], residual, inside)
        _meet(residual, entries, norm, code, size, row, rows, found)
    else:
        # All programs of these rows store the same values, so each may read what it stored.
        tl.store(after + row[:, None] * dim + column[None, :], residual, inside)
        tl.debug_barrier()
        for group in tl.range(0, BLOCK_ROWS, GROUP_ROWS):
            few = begin + group + tl.arange(0, GROUP_ROWS)
            there = (few < rows)[:, None] & (column < dim)[None, :]
            part = tl.load(after + few[:, None] * dim + column[None, :], there, other=0.0)
            _meet(part, entries, norm, code, size, few, rows, found)


def nearest_codes(
    latents: torch.Tensor, books: torch.Tensor, norms: torch.Tensor, depth: int
) -> torch.Tensor:
    """Launches :func:`antiphon_kernels.nearest_codes.nearest_codes` on the latents' device."""
    if latents.stride(1) != 1 or not (books.is_contiguous() and norms.is_contiguous()):
        raise ValueError("nearest_codes: books, norms and the rows of latents must be contiguous")
    rows, dim = latents.shape
    size = books.shape[1]
    winners = torch.full((depth, rows), UNDECIDED, dtype=torch.int64, device=latents.device)
    if rows == 0:
        return winners
    residuals = torch.empty(2, rows, dim, device=latents.device)
    block_codes = min(MOST_CODES, max(LEAST_CODES, triton.next_power_of_2(size) // PROGRAMS))
    block_rows = min(MOST_ROWS, triton.next_power_of_2(rows))
    early = early_launch(latents.device)
    grid = (triton.cdiv(size, block_codes), triton.cdiv(rows, block_rows))
    before, before_row = latents, latents.stride(0)
    for level in range(depth):
        after = residuals[level % 2]
        _level[grid](
            before, after, books, norms, winners, level, rows, before_row, size, dim,
            FIRST=level == 0, EARLY=early, BLOCK_ROWS=block_rows,
            GROUP_ROWS=min(GROUP, block_rows), BLOCK_CODES=block_codes,
            BLOCK_DIM=triton.next_power_of_2(dim), num_warps=4, launch_pdl=early,
        )  # fmt: skip
        before, before_row = after, dim
    return winners & CODE_BITS
