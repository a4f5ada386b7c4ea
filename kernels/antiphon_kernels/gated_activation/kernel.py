# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# Triton declares neither its CUDA extras nor the options of a launch.
"""Gated activations on CUDA."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from antiphon_kernels.launch import early_launch

BLOCK = 1024


@triton.jit
def activate(gate, ACTIVATION: tl.constexpr):
    """silu or tanh-approximated gelu of fp32 values; ``(1 + tanh(u)) / 2 = sigmoid(2u)``."""
    if ACTIVATION == "silu":
        result = gate * tl.sigmoid(gate)
    else:
        result = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    return result


@triton.jit
def _gated(
    gate, up, out, width, gate_row, up_row, out_row,
    ACTIVATION: tl.constexpr, EARLY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    g = tl.load(gate + row * gate_row + column, inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_row + column, inside, other=0.0).to(tl.float32)
    result = activate(g, ACTIVATION) * u
    tl.store(out + row * out_row + column, result.to(out.dtype.element_ty), inside)


def gated_activation(
    activation: str, gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor | None
) -> torch.Tensor:
    """Launches "silu" or "gelu_tanh" of gate (N, I) times up (N, I), views of wider rows or not."""
    rows, width = gate.shape
    if out is None:
        out = torch.empty((rows, width), dtype=gate.dtype, device=gate.device)
    if gate.stride(1) != 1 or up.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("gated_activation: rows must be contiguous")
    if out.numel() == 0:
        return out
    early = early_launch(gate.device)
    _gated[(triton.cdiv(width, BLOCK), rows)](
        gate, up, out, width, gate.stride(0), up.stride(0), out.stride(0),
        ACTIVATION=activation, EARLY=early, BLOCK=BLOCK, num_warps=4, launch_pdl=early,
    )  # fmt: skip
    return out
