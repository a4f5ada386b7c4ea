"""One token per row of logits: exact filters, counter-based Gumbel noise, argmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch

from antiphon_kernels.sample import reference

__all__ = ["Fault", "Mask", "RowSettings", "Workspace", "mask_words", "sample"]

_ALIGNMENT = 16
GROUP = 128
"""Logits whose maximum stands for them in the search for a lower bound of a cut."""
CANDIDATES = 2048
"""Survivors of a lower bound that one row keeps; more of them take the general search."""
BUCKETS = 2048
"""Depths below a row's best score, 1/64 wide, that the general search counts."""
MAX_VOCABULARY = 1 << 18
"""Masses are summed in fixed point, whose range this bounds."""


class Fault(IntEnum):
    """Why a row could not draw."""

    NONE = 0
    NAN = 1
    EMPTY = 2
    """No finite logit is left."""
    INFINITE = 3


@dataclass(frozen=True, slots=True)
class RowSettings:
    """What each row is drawn with: views of one ``buffer``, so that one copy moves them all.

    Attributes:
        buffer: (bytes) uint8; that of N rows has the same layout on every device.
        temperature: fp32 (N), above 0.
        noise: fp32 (N), 1 to draw, 0 to take the best logit.
        top_k: int32 (N), 0 is off; k >= V is off too.
        top_p: fp64 (N), 1 is off.
        log_min_p: fp32 (N), ``ln(min_p)`` rounded from fp64; -inf is off.
        key: int64 (N), the request key's 64 bits.
        position: int32 (N), absolute position of the token being drawn.
        choice: int32 (N), which of a request's parallel choices.
    """

    buffer: torch.Tensor
    temperature: torch.Tensor
    noise: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    log_min_p: torch.Tensor
    key: torch.Tensor
    position: torch.Tensor
    choice: torch.Tensor

    @classmethod
    def allocate(
        cls, rows: int, device: torch.device | str = "cpu", *, pinned: bool = False
    ) -> RowSettings:
        """Settings of ``rows`` rows, all greedy; ``pinned`` is for a host's copy."""
        dtypes = (
            torch.float32, torch.float32, torch.int32, torch.float64,
            torch.float32, torch.int64, torch.int32, torch.int32,
        )  # fmt: skip
        starts, end = [], 0
        for dtype in dtypes:
            starts.append(end)
            end += -(-rows * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        buffer = torch.zeros(end, dtype=torch.uint8, device=device, pin_memory=pinned)
        views = [
            buffer[start : start + rows * dtype.itemsize].view(dtype)
            for start, dtype in zip(starts, dtypes, strict=True)
        ]
        settings = cls(buffer, *views)
        settings.temperature.fill_(1)
        settings.top_k.fill_(1)
        settings.top_p.fill_(1)
        settings.log_min_p.fill_(-torch.inf)
        return settings

    def columns(self) -> Sequence[torch.Tensor]:
        """The settings alone, in the order of their declaration."""
        return (
            self.temperature, self.noise, self.top_k, self.top_p,
            self.log_min_p, self.key, self.position, self.choice,
        )  # fmt: skip


def mask_words(vocabulary: int) -> int:
    """int32 words of a row's mask: a bit for each id."""
    return -(-vocabulary // 32)


@dataclass(frozen=True, slots=True)
class Mask:
    """What C of the rows may draw.

    Attributes:
        rows: int32 (C), which rows; each at most once.
        bits: int32 (C, mask_words(V)), rows contiguous: bit ``v & 31`` of word ``v >> 5`` is set
            where id v is allowed.
        forced: int32 (C), the only id that is left, whatever its bit and its logit; -1 for none.
    """

    rows: torch.Tensor
    bits: torch.Tensor
    forced: torch.Tensor


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch of the device kernels for up to ``rows`` rows; holds nothing between calls."""

    rows: int
    vocabulary: int
    span_best: torch.Tensor
    """fp32 (rows, 2, spans): largest logit, and largest score with noise, of each span."""
    span_token: torch.Tensor
    """int32 (rows, 2, spans): whether a span holds NaN, and the noisy best's id."""
    group_best: torch.Tensor
    """fp32 (rows, groups): largest logits."""
    candidates: torch.Tensor
    """fp32 (rows, CANDIDATES): logits that reach the bound."""
    candidate_ids: torch.Tensor
    """int32 (rows, CANDIDATES)."""
    limits: torch.Tensor
    """fp32 (rows, 3): the largest score, the least logit of a candidate, the cut of the scores."""
    counters: torch.Tensor
    """int32 (rows, 4): phase, candidates found, programs arrived (0 between calls) twice."""
    sums: torch.Tensor
    """int64 (rows, 2): fixed-point mass of the row, packed best of the last stage."""
    counts: torch.Tensor
    """int32 (rows, BUCKETS)."""
    masses: torch.Tensor
    """int64 (rows, BUCKETS)."""

    @classmethod
    def allocate(cls, rows: int, vocabulary: int, device: torch.device | str) -> Workspace:
        """Raises ValueError for a vocabulary beyond ``MAX_VOCABULARY``."""
        if not 0 < vocabulary <= MAX_VOCABULARY:
            raise ValueError(f"sample: vocabulary {vocabulary} is outside [1, {MAX_VOCABULARY}]")
        spans = -(-vocabulary // SMALLEST_SPAN)
        floats = {"dtype": torch.float32, "device": device}
        ints = {"dtype": torch.int32, "device": device}
        return cls(
            rows,
            vocabulary,
            torch.empty((rows, 2, spans), **floats),
            torch.empty((rows, 2, spans), **ints),
            torch.empty((rows, -(-vocabulary // GROUP)), **floats),
            torch.empty((rows, CANDIDATES), **floats),
            torch.empty((rows, CANDIDATES), **ints),
            torch.empty((rows, 3), **floats),
            torch.zeros((rows, 4), **ints),
            torch.empty((rows, 2), dtype=torch.int64, device=device),
            torch.empty((rows, BUCKETS), **ints),
            torch.empty((rows, BUCKETS), dtype=torch.int64, device=device),
        )

    @staticmethod
    def predict_bytes(rows: int, vocabulary: int) -> int:
        """Bytes that ``allocate`` takes."""
        spans = -(-vocabulary // SMALLEST_SPAN)
        groups = -(-vocabulary // GROUP)
        return rows * (4 * (4 * spans + groups + 2 * CANDIDATES + 3 + 4) + 16 + 12 * BUCKETS)


SMALLEST_SPAN = 1024
"""Logits of one program where few rows have to fill the device."""


def sample(
    logits: torch.Tensor,
    settings: RowSettings,
    out: torch.Tensor,
    faults: torch.Tensor,
    workspace: Workspace | None,
    mask: Mask | None = None,
) -> None:
    """Draws one token per row: ``argmax(l / T + noise g)`` over what top_k, top_p, min_p keep.

    A fixed sequence of launches that reads all settings on the device: it can be captured,
    and a row's token depends neither on the other rows nor on R. The filters keep
    ``{v : l_v / T >= tau}`` with tau the largest of three cuts, each at a logit: ties stay
    whole, top_p counts the mass of top_k's survivors, and the best token survives. The lowest
    id wins ties. Words of the noise ``g`` are Philox4x32-10 of (id >> 2, position, 0, choice)
    under the key, lane id & 3.

    Args:
        logits: (R, V) fp32 or bf16 whose last axis is contiguous; left unchanged.
        settings: of at least R rows.
        out: int32 or int64 (R), the tokens; 0 in a row with a fault, so that a step which is
            launched before the host knows can embed it.
        faults: int32 (R), a :class:`Fault` per row.
        workspace: of at least R rows and of V; CPU tensors need none.
        mask: draws its rows alone, the others' ``out`` and ``faults`` stay. Barred ids have the
            logit -inf, a forced id 0, before anything else is done.
    """
    if mask is not None and mask.bits.shape[1] != mask_words(logits.shape[1]):
        raise ValueError(
            f"sample: masks of {mask.bits.shape[1]} words, {mask_words(logits.shape[1])} needed"
        )
    if logits.is_cuda:
        from antiphon_kernels.sample import kernel

        if workspace is None:
            raise ValueError("sample: the device kernels need a workspace")
        kernel.sample(logits, settings, out, faults, workspace, mask)
    else:
        reference.sample(logits, settings.columns(), out, faults, mask)
