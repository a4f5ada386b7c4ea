# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# Triton declares neither its CUDA extras nor the options of a launch.
"""Token embedding on CUDA."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from antiphon_kernels.launch import early_launch

BLOCK = 1024


@triton.jit
def _embedding(
    ids, weight, drawn, out, tokens, width, weight_row, out_row, scale,
    KEEP: tl.constexpr, EARLY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    known = tl.load(ids + row)
    ahead = known < 0
    table_row = tl.where(ahead, -1 - known, 0)
    last = tl.load(drawn + table_row, mask=ahead, other=0)
    token = tl.where(ahead, last.to(tl.int32), known)
    if KEEP:
        tl.store(tokens + row, token)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(weight + token.to(tl.int64) * weight_row + column, inside, other=0.0)
    value = value.to(tl.float32) * scale
    tl.store(out + row * out_row + column, value.to(out.dtype.element_ty), inside)


def embedding(
    ids: torch.Tensor,
    weight: torch.Tensor,
    drawn: torch.Tensor,
    scale: float,
    out: torch.Tensor | None,
    tokens: torch.Tensor | None,
) -> torch.Tensor:
    """Launches :func:`antiphon_kernels.embedding.embedding`; ids are not checked."""
    rows, width = ids.shape[0], weight.shape[1]
    if out is None:
        out = torch.empty((rows, width), dtype=weight.dtype, device=weight.device)
    if rows == 0:
        return out
    early = early_launch(weight.device)
    _embedding[(rows, triton.cdiv(width, BLOCK))](
        ids, weight, drawn, out, ids if tokens is None else tokens, width,
        weight.stride(0), out.stride(0), scale,
        KEEP=tokens is not None, EARLY=early, BLOCK=BLOCK, num_warps=4, launch_pdl=early,
    )  # fmt: skip
    return out
