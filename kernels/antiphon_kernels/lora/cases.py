"""Shapes for tests and measurements of the low-rank additions."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from antiphon_kernels.lora.banks import DeviceBank, HostBank, LowRank


@dataclass(frozen=True)
class Case:
    """N rows of a projection; ``ranks`` by slot from 1 on, ``named`` the rows' slots in turn."""

    rows: int
    depth: int
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    named: tuple[int, ...]

    def __str__(self) -> str:
        sizes = "+".join(map(str, self.sizes))
        ranks = ",".join(map(str, self.ranks))
        return f"{self.rows}x{self.depth}to{sizes}-r{ranks}-s{''.join(map(str, self.named))}"


CASES = (
    Case(1, 64, (96,), (8,), (1,)),
    Case(5, 576, (576, 192, 192), (16, 3, 8), (0, 1, 2, 3)),
    Case(17, 40, (33, 7), (5,), (1, 0)),
    Case(64, 96, (300, 300), (16, 16, 4, 16), (1, 2, 3, 4)),
    Case(3, 128, (520,), (33, 1), (2, 1, 0)),
)


@dataclass
class Arguments:
    """Tensors of one call."""

    x: torch.Tensor
    slots: torch.Tensor
    active: torch.Tensor
    out: torch.Tensor
    adapters: list[tuple[LowRank | None, ...]]
    """By slot from 1 on. The last part of the last adapter is absent where there are several."""


def build(case: Case, seed: int = 0) -> Arguments:
    """Random fp32 CPU tensors of a case."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    adapters: list[tuple[LowRank | None, ...]] = []
    for rank in case.ranks:
        parts = [
            LowRank(random(rank, case.depth) * case.depth**-0.5, random(rank, size) * rank**-0.5)
            for size in case.sizes
        ]
        last = len(adapters) + 1 == len(case.ranks) and len(parts) > 1
        adapters.append(tuple([*parts[:-1], None] if last else parts))
    slots = [case.named[row % len(case.named)] for row in range(case.rows)]
    named = sorted(set(slots) - {0})
    room = 1 << max(0, (len(named) - 1).bit_length())
    return Arguments(
        x=random(case.rows, case.depth),
        slots=torch.tensor(slots, dtype=torch.int32),
        active=torch.tensor(named + [0] * (room - len(named)), dtype=torch.int32),
        out=random(case.rows, sum(case.sizes)),
        adapters=adapters,
    )


def host_bank(case: Case, arguments: Arguments) -> HostBank:
    """The adapters of a case as the CPU holds them."""
    bank = HostBank(1 + len(case.ranks), case.depth, case.sizes)
    for slot, parts in enumerate(arguments.adapters, 1):
        bank.set(slot, parts)
    return bank


def device_bank(
    case: Case, arguments: Arguments, dtype: torch.dtype, device: torch.device | str
) -> DeviceBank:
    """The adapters of a case as an accelerator holds them."""
    bank = DeviceBank(
        1 + len(case.ranks),
        case.depth,
        case.sizes,
        rank=max(case.ranks),
        dtype=dtype,
        device=device,
    )
    for slot, parts in enumerate(arguments.adapters, 1):
        bank.set(slot, parts)
    return bank
