"""Low-rank additions of many adapters to the outputs of one projection, row by row."""

from __future__ import annotations

import torch

from antiphon_kernels.lora import reference
from antiphon_kernels.lora.banks import DeviceBank, HostBank, LowRank
from antiphon_kernels.runtime import native_for

__all__ = ["DeviceBank", "HostBank", "LowRank", "lora"]


def lora(
    x: torch.Tensor,
    bank: HostBank | DeviceBank,
    slots: torch.Tensor,
    out: torch.Tensor,
    active: torch.Tensor | None = None,
) -> None:
    """``out[n] += (x[n] A^T) B`` with A and B of the adapter in ``slots[n]``, in place.

    Rows of slot 0 are not touched. A row's bits do not depend on the other rows. A launch may
    be recorded: what it reads of the step lies in ``slots`` and ``active``, and what an adapter
    is in the bank's memory.

    Args:
        x: (N, depth), last axis contiguous; none of ``out``'s memory.
        bank: the projection's adapters by slot.
        slots: int32 (N) within [0, bank.slots).
        out: (N, sum of bank.sizes), last axis contiguous; x's dtype.
        active: int32 (J), each slot but 0 that ``slots`` names once, and zeros; what the CUDA
            kernels launch for. Not read elsewhere.

    Raises:
        IndexError: on CPU, a slot is outside the bank; nothing was written then. On CUDA slots
            are not checked.
        ValueError: shapes disagree.
    """
    rows, depth = x.shape
    if depth != bank.depth or out.shape != (rows, sum(bank.sizes)) or slots.shape != (rows,):
        raise ValueError(
            f"lora: x {tuple(x.shape)}, slots {tuple(slots.shape)} and out {tuple(out.shape)} do "
            f"not fit a projection of {bank.depth} to {bank.sizes}"
        )
    if isinstance(bank, DeviceBank):
        if not x.is_cuda:
            reference.lora(x, bank, slots, out)
            return
        from antiphon_kernels.lora import kernel

        if active is None:
            raise ValueError("lora: on CUDA the active slots are needed")
        kernel.lora(x, bank, slots, active, out)
        return
    native = native_for("lora", x, out)
    if native is None:
        reference.lora(x, bank, slots, out)
    else:
        native.lora(bank.native, x, slots, out)
