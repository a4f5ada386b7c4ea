"""The device's low-rank additions against their fp32 reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from antiphon_kernels.lora import kernel, reference
from antiphon_kernels.lora.cases import CASES, Arguments, Case, build, device_bank

TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},
}


def on(device: torch.device, case: Case, dtype: torch.dtype) -> tuple[Arguments, object]:
    arguments = build(case)
    bank = device_bank(case, arguments, dtype, device)
    moved = replace(
        arguments,
        x=arguments.x.to(device, dtype),
        slots=arguments.slots.to(device),
        active=arguments.active.to(device),
        out=arguments.out.to(device, dtype),
    )
    return moved, bank


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_lora(device: torch.device, case: Case, dtype: torch.dtype) -> None:
    arguments, bank = on(device, case, dtype)
    expected = arguments.out.clone()
    reference.lora(arguments.x, bank, arguments.slots, expected)
    before = arguments.out.clone()
    kernel.lora(arguments.x, bank, arguments.slots, arguments.active, arguments.out)
    torch.testing.assert_close(arguments.out, expected, **TOLERANCE[dtype])
    base = arguments.slots == 0
    assert torch.equal(arguments.out[base], before[base])
    assert not torch.equal(arguments.out[~base], before[~base])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", [CASES[1], CASES[3]], ids=str)
def test_a_row_is_the_same_in_any_company(
    device: torch.device, case: Case, dtype: torch.dtype
) -> None:
    """Other rows, more active adapters, another order of them. Interpreted, a product rounds by
    the row's place in its tile."""
    apart = 0.0 if device.type == "cuda" else 1e-2 if dtype is torch.bfloat16 else 1e-6
    arguments, bank = on(device, case, dtype)
    alone = arguments.out.clone()
    kernel.lora(arguments.x, bank, arguments.slots, arguments.active, arguments.out)
    for row in range(0, case.rows, 7):
        span = slice(row, row + 1)
        active = arguments.active if row % 2 else arguments.slots[span].contiguous()
        kernel.lora(arguments.x[span], bank, arguments.slots[span], active.flip(0), alone[span])
        torch.testing.assert_close(alone[span], arguments.out[span], rtol=apart, atol=apart)


def test_a_deep_projection_is_cut(device: torch.device) -> None:
    case = Case(3, 1100, (140,), (16, 5), (1, 2, 0))
    arguments, bank = on(device, case, torch.float32)
    expected = arguments.out.clone()
    reference.lora(arguments.x, bank, arguments.slots, expected)
    kernel.lora(arguments.x, bank, arguments.slots, arguments.active, arguments.out)
    torch.testing.assert_close(arguments.out, expected, **TOLERANCE[torch.float32])


def test_what_nobody_names_is_not_launched_for(device: torch.device) -> None:
    case = CASES[3]
    arguments, bank = on(device, case, torch.float32)
    before = arguments.out.clone()
    for active in (torch.zeros(4, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)):
        kernel.lora(arguments.x, bank, arguments.slots, active.to(device), arguments.out)
    assert torch.equal(arguments.out, before)


def test_an_emptied_slot_adds_nothing_and_a_new_adapter_nothing_of_the_old(
    device: torch.device,
) -> None:
    case = CASES[0]
    arguments, bank = on(device, case, torch.float32)
    before = arguments.out.clone()
    bank.clear(1)
    kernel.lora(arguments.x, bank, arguments.slots, arguments.active, arguments.out)
    assert torch.equal(arguments.out, before)
    smaller = build(replace(case, ranks=(2,)), seed=3)
    bank.set(1, smaller.adapters[0])
    expected = before.clone()
    reference.lora(arguments.x, bank, arguments.slots, expected)
    kernel.lora(arguments.x, bank, arguments.slots, arguments.active, arguments.out)
    torch.testing.assert_close(arguments.out, expected, **TOLERANCE[torch.float32])


def test_a_rank_above_the_bank_is_refused(device: torch.device) -> None:
    case = CASES[0]
    _, bank = on(device, case, torch.float32)
    with pytest.raises(ValueError, match="rank 9 is above the bank's 8"):
        bank.set(1, build(replace(case, ranks=(9,))).adapters[0])
