"""The processor's low-rank additions against their reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from antiphon_kernels.cpu import library
from antiphon_kernels.cpu.program import record
from antiphon_kernels.lora import HostBank, LowRank, lora, reference
from antiphon_kernels.lora.cases import CASES, Case, build, device_bank, host_bank

CLOSE = {"rtol": 2e-6, "atol": 2e-6}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lora(isa: str, case: Case) -> None:
    arguments = build(case)
    bank = host_bank(case, arguments)
    expected = arguments.out.clone()
    reference.lora(arguments.x, bank, arguments.slots, expected)
    before = arguments.out.clone()
    lora(arguments.x, bank, arguments.slots, arguments.out)
    torch.testing.assert_close(arguments.out, expected, **CLOSE)
    base = arguments.slots == 0
    assert torch.equal(arguments.out[base], before[base])
    assert not torch.equal(arguments.out[~base], before[~base])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_row_is_the_same_in_any_company(isa: str, case: Case) -> None:
    arguments = build(case)
    bank = host_bank(case, arguments)
    alone = arguments.out.clone()
    lora(arguments.x, bank, arguments.slots, arguments.out)
    for row in range(case.rows):
        span = slice(row, row + 1)
        lora(arguments.x[span], bank, arguments.slots[span], alone[span])
    assert torch.equal(alone, arguments.out)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_padded_adapters_add_the_same(case: Case) -> None:
    arguments = build(case)
    expected, padded = arguments.out.clone(), arguments.out
    reference.lora(arguments.x, host_bank(case, arguments), arguments.slots, expected)
    bank = device_bank(case, arguments, torch.float32, "cpu")
    lora(arguments.x, bank, arguments.slots, padded)
    torch.testing.assert_close(padded, expected, **CLOSE)


def test_rows_may_be_strided(isa: str) -> None:
    case = CASES[1]
    arguments = build(case)
    bank = host_bank(case, arguments)
    expected = arguments.out.clone()
    lora(arguments.x, bank, arguments.slots, expected)
    wide_x = torch.full((case.rows, case.depth + 9), float("nan"))
    wide_out = torch.full((case.rows, expected.shape[1] + 5), 7.0)
    x, out = wide_x[:, 4:-5], wide_out[:, :-5]
    x.copy_(arguments.x)
    out.copy_(arguments.out)
    lora(x, bank, arguments.slots, out)
    assert torch.equal(out, expected)
    assert (wide_out[:, -5:] == 7.0).all()


def test_an_emptied_slot_adds_nothing(isa: str) -> None:
    case = CASES[0]
    arguments = build(case)
    bank = host_bank(case, arguments)
    before = arguments.out.clone()
    bank.clear(1)
    lora(arguments.x, bank, arguments.slots, arguments.out)
    assert torch.equal(arguments.out, before)


def test_a_slot_outside_the_table_writes_nothing(isa: str) -> None:
    case = replace(CASES[1], named=(1, 9))
    arguments = build(replace(case, named=(1, 0)))
    bank = host_bank(case, arguments)
    before = arguments.out.clone()
    for wrong in (4, -1):
        slots = torch.tensor([1, 0, 1, wrong, 1], dtype=torch.int32)
        with pytest.raises(IndexError, match=r"\[0, 4\)"):
            lora(arguments.x, bank, slots, arguments.out)
    assert torch.equal(arguments.out, before)


@pytest.mark.skipif(library.native() is None, reason="programs are native calls")
def test_a_recorded_call_reads_the_table_as_it_is_now() -> None:
    """Slots are given to other adapters between steps, of other ranks."""
    case = CASES[1]
    first, second = build(case, seed=1), build(replace(case, ranks=(2, 20, 9)), seed=2)
    bank = host_bank(case, first)
    x, slots, out = first.x, first.slots, first.out.clone()
    program, refusal = record(lambda: lora(x, bank, slots, out))
    assert program is not None, refusal
    for slot, parts in enumerate(second.adapters, 1):
        bank.set(slot, parts)
    slots.copy_(torch.tensor([3, 2, 0, 1, 2], dtype=torch.int32))
    expected = out.clone()
    lora(x, bank, slots, expected)
    program.replay()
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("slot", "parts", "message"),
    [
        (0, [None], "slot 0 is none of 1 to 1"),
        (2, [None], "slot 2 is none of 1 to 1"),
        (1, [None, None], "2 parts for a projection of 1"),
        (1, [LowRank(torch.zeros(2, 5), torch.zeros(2, 3))], "do not fit 4 inputs and 3 outputs"),
        (1, [LowRank(torch.zeros(2, 4), torch.zeros(1, 3))], "do not fit"),
        (1, [LowRank(torch.zeros(2, 4).half(), torch.zeros(2, 3))], "contiguous fp32"),
        (1, [LowRank(torch.zeros(2, 4), torch.zeros(3, 2).t())], "contiguous fp32"),
    ],
)
def test_what_does_not_fit_is_refused(slot: int, parts: list[LowRank | None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HostBank(2, 4, [3]).set(slot, parts)
