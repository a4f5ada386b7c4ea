"""Where the adapters of one projection lie, by slot."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch

from antiphon_kernels.cpu.signatures import Lora, LoraPart


class LowRank(NamedTuple):
    """One adapter's share in one part of a projection."""

    a: torch.Tensor
    """(rank, depth)."""
    b: torch.Tensor
    """(rank, outputs of the part): B transposed, the adapter's scale folded in."""


class HostBank:
    """Adapters as they are, each with its own rank; fp32, contiguous.

    The table that kernels read stays where it is while its contents change, so recorded steps
    stay good. Nothing may run that reads a slot while that is set or cleared.

    Args:
        slots: of the table, slot 0 included, which stays empty.
        depth: inputs of the projection.
        sizes: outputs of its parts, such as q, k and v.

    Attributes:
        native: the table's record for the native kernels.
    """

    def __init__(self, slots: int, depth: int, sizes: Sequence[int]) -> None:
        self.slots = slots
        self.depth = depth
        self.sizes = list(sizes)
        self._parts: list[tuple[LowRank | None, ...]] = [self._empty] * slots
        self._table = (LoraPart * (slots * len(self.sizes)))()
        self._sizes = (ctypes.c_int64 * len(self.sizes))(*self.sizes)
        self.native = Lora(
            ctypes.addressof(self._table), ctypes.addressof(self._sizes), len(self.sizes), slots,
            depth,
        )  # fmt: skip

    @property
    def _empty(self) -> tuple[LowRank | None, ...]:
        return (None,) * len(self.sizes)

    def set(self, slot: int, parts: Sequence[LowRank | None]) -> None:
        """Puts an adapter into a slot; None for a part that it leaves alone.

        Raises ValueError for slot 0 and for tensors of another shape, dtype or layout.
        """
        _check(self, slot, parts)
        for part in parts:
            if part is not None and not all(
                tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in part
            ):
                raise ValueError("a host bank holds contiguous fp32 tensors")
        self._parts[slot] = tuple(parts)
        for place, part in enumerate(parts):
            entry = self._table[slot * len(self.sizes) + place]
            entry.rank = 0 if part is None else part.a.shape[0]
            entry.a = None if part is None else part.a.data_ptr()
            entry.b = None if part is None else part.b.data_ptr()

    def clear(self, slot: int) -> None:
        """Empties a slot: its rows get nothing added."""
        self.set(slot, self._empty)

    def parts(self, slot: int) -> tuple[LowRank | None, ...]:
        """What lies in a slot."""
        return self._parts[slot]


class DeviceBank:
    """Adapters padded with zeros to one rank, in fixed memory of a device.

    Attributes:
        a: (slots, parts, rank, depth).
        b: (slots, rank, outputs of all parts).
        ranks: int32 (slots), each adapter's own.
    """

    def __init__(
        self,
        slots: int,
        depth: int,
        sizes: Sequence[int],
        *,
        rank: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.slots = slots
        self.depth = depth
        self.sizes = list(sizes)
        self.rank = rank
        kind = {"dtype": dtype, "device": device}
        self.a = torch.zeros((slots, len(self.sizes), rank, depth), **kind)
        self.b = torch.zeros((slots, rank, sum(self.sizes)), **kind)
        self.ranks = torch.zeros(slots, dtype=torch.int32, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of both tables."""
        return self.a.nbytes + self.b.nbytes

    def set(self, slot: int, parts: Sequence[LowRank | None]) -> None:
        """As :meth:`HostBank.set`, copied in the order of the device's work.

        Raises ValueError for a rank above the bank's, too.
        """
        _check(self, slot, parts)
        wide = [part.a.shape[0] for part in parts if part is not None and len(part.a) > self.rank]
        if wide:
            raise ValueError(f"rank {wide[0]} is above the bank's {self.rank}")
        self.clear(slot)
        begin = 0
        for place, (size, part) in enumerate(zip(self.sizes, parts, strict=True)):
            if part is not None:
                rank = part.a.shape[0]
                self.a[slot, place, :rank].copy_(part.a)
                self.b[slot, :rank, begin : begin + size].copy_(part.b)
            begin += size
        held = [part.a.shape[0] for part in parts if part is not None]
        self.ranks[slot].fill_(max(held, default=0))

    def clear(self, slot: int) -> None:
        """Empties a slot."""
        self.a[slot].zero_()
        self.b[slot].zero_()
        self.ranks[slot].zero_()

    def parts(self, slot: int) -> tuple[LowRank | None, ...]:
        """What lies in a slot, padding included."""
        split = self.b[slot].split(self.sizes, dim=1)
        return tuple(LowRank(a, b) for a, b in zip(self.a[slot], split, strict=True))


def _check(bank: HostBank | DeviceBank, slot: int, parts: Sequence[LowRank | None]) -> None:
    if not 0 < slot < bank.slots:
        raise ValueError(f"slot {slot} is none of 1 to {bank.slots - 1}")
    if len(parts) != len(bank.sizes):
        raise ValueError(f"{len(parts)} parts for a projection of {len(bank.sizes)}")
    for size, part in zip(bank.sizes, parts, strict=True):
        if part is None:
            continue
        rank = part.a.shape[0]
        if part.a.shape != (rank, bank.depth) or part.b.shape != (rank, size):
            raise ValueError(
                f"A {tuple(part.a.shape)} and B {tuple(part.b.shape)} do not fit "
                f"{bank.depth} inputs and {size} outputs"
            )
