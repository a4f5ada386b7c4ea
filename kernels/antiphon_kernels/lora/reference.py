"""Low-rank additions in plain torch, adapter by adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from antiphon_kernels.lora.banks import DeviceBank, HostBank


def lora(
    x: torch.Tensor, bank: HostBank | DeviceBank, slots: torch.Tensor, out: torch.Tensor
) -> None:
    """See :func:`antiphon_kernels.lora.lora`; sums are fp32, each row's alone."""
    named = slots.tolist()
    if any(not 0 <= slot < bank.slots for slot in named):
        raise IndexError(f"lora: a slot lies outside [0, {bank.slots})")
    for row, slot in enumerate(named):
        if not slot:
            continue
        begin = 0
        for size, part in zip(bank.sizes, bank.parts(slot), strict=True):
            if part is not None:
                hidden = (part.a.float() * x[row].float()).sum(1)
                added = (part.b.float() * hidden[:, None]).sum(0)
                target = out[row, begin : begin + size]
                target.copy_(target.float() + added)
            begin += size
