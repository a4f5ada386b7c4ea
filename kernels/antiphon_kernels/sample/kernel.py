# pyright: reportCallIssue=false
# Triton does not declare the options of a launch.
"""The draw in Triton: five launches, whose work each row chooses on the device.

1. ``scan`` reads the logits once. A row without filters is decided by it; a filtered row gets
   a lower bound of its cut: the k-th largest of n group maxima is at most the k-th largest
   logit.
2. ``collect`` gathers the logits that reach the bound, and the row's mass where top_p alone
   needs it.
3. ``decide`` bisects each cut over the candidates, in registers: how many, or how much mass,
   reach a value. Ties are included, and nothing is sorted.
4. ``search`` finds the cut of the rows that have more candidates than fit, or a nucleus
   larger than them.
5. ``finish`` draws those rows.

A row that is done leaves the later stages at once. Masses are integers, so no order of
summation can move a cut.
"""

from __future__ import annotations

import torch
import triton

from antiphon_kernels.launch import early_launch
from antiphon_kernels.sample import BUCKETS, CANDIDATES, GROUP, Mask, RowSettings, Workspace
from antiphon_kernels.sample.candidates import collect, decide
from antiphon_kernels.sample.scan import scan
from antiphon_kernels.sample.search import finish, search

_SEARCHED = 2048
"""Logits that a program of a searched row reads at once."""


def sample(
    logits: torch.Tensor,
    settings: RowSettings,
    out: torch.Tensor,
    faults: torch.Tensor,
    workspace: Workspace,
    mask: Mask | None = None,
) -> None:
    """As :func:`antiphon_kernels.sample.sample`, on tensors of one device."""
    rows, vocabulary = logits.shape
    if logits.stride(1) != 1 or vocabulary != workspace.vocabulary:
        raise ValueError("sample: logits need contiguous rows of the workspace's vocabulary")
    if rows > min(workspace.rows, settings.temperature.shape[0]):
        raise ValueError(f"sample: {rows} rows exceed the workspace or the settings")
    if mask is not None:
        rows = mask.rows.shape[0]
    if rows == 0:
        return
    # Longer spans where the rows alone fill the device; they change no result.
    block, blocks = (1024, 1) if rows <= 2 else (2048, 1 if rows <= 16 else 4 if rows <= 96 else 8)
    spans = triton.cdiv(vocabulary, block * blocks)
    # Few rows are searched, and the programs of the others end at once.
    long_blocks = 8 if rows <= 96 else 16
    long_spans = triton.cdiv(vocabulary, _SEARCHED * long_blocks)
    s, w = settings, workspace
    groups, span_stride = w.group_best.shape[1], w.span_best.shape[2]
    source = (logits, logits.stride(0), vocabulary, *_masked(mask))
    filters = (s.top_k, s.top_p, s.log_min_p)
    noise = (s.key, s.position, s.choice)
    state = (w.limits, w.counters, w.sums)
    native, early = logits.is_cuda, early_launch(logits.device)
    # Limited registers let more of the programs that end at once be resident.
    options = {"EARLY": early, "launch_pdl": early}
    pieces = {"blocks": blocks, "BLOCK": block, "num_warps": block // 256} | options
    long_pieces = {"blocks": long_blocks, "BLOCK": _SEARCHED, "num_warps": 8} | options
    sizes = {"KEPT": CANDIDATES, "BUCKETS": BUCKETS}
    grid = (spans, rows)
    scan[grid](
        *source, mask and mask.forced, s.temperature, s.noise, *filters, *noise,
        w.span_best, w.span_token, span_stride, w.group_best, groups, *state, out, faults,
        GROUP_SIZE=GROUP, SPANS=triton.next_power_of_2(span_stride),
        GROUPS=triton.next_power_of_2(groups), NATIVE=native, maxnreg=80, **pieces,
    )  # fmt: skip
    collect[grid](
        *source, s.temperature, s.top_k, s.top_p, w.candidates, w.candidate_ids, *state,
        KEPT=CANDIDATES, maxnreg=64, **pieces,
    )  # fmt: skip
    decide[(rows,)](
        vocabulary, mask and mask.rows, s.temperature, s.noise, *filters, *noise,
        w.candidates, w.candidate_ids, *state, w.counts, w.masses, out,
        num_warps=8, **sizes, **options,
    )  # fmt: skip
    search[(long_spans, rows)](
        *source, s.temperature, *filters, w.candidates, *state, w.counts, w.masses,
        maxnreg=128, **sizes, **long_pieces,
    )  # fmt: skip
    finish[(long_spans, rows)](
        *source, s.temperature, s.noise, *noise, *state, out,
        NATIVE=native, maxnreg=80, **long_pieces,
    )  # fmt: skip


def _masked(mask: Mask | None) -> tuple[torch.Tensor | int | None, ...]:
    """Rows and bits with their stride, as the kernels take them."""
    return (None, None, 0) if mask is None else (mask.rows, mask.bits, mask.bits.stride(0))
