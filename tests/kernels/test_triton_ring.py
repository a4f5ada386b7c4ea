"""Ring attention on the device against its reference."""

from __future__ import annotations

import pytest
import torch
from antiphon_kernels.ring_attention import kernel, reference, ring_attention
from antiphon_kernels.ring_attention.cases import CASES, MIMI, Case, Inputs, build

TOLERANCE = {
    torch.float32: {"rtol": 1e-5, "atol": 2e-6},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
}


def arguments(inputs: Inputs, ring: torch.Tensor) -> tuple:
    return inputs.qkv, inputs.turns, ring, inputs.before, inputs.targets, inputs.window


def check(case: Case, device: torch.device, dtype: torch.dtype) -> None:
    inputs = build(case, device, dtype)
    ring, wanted_ring = inputs.ring.clone(), inputs.ring.clone()
    wanted = reference.ring_attention(*arguments(inputs, wanted_ring))
    result = kernel.ring_attention(*arguments(inputs, ring))
    torch.testing.assert_close(result, wanted, **TOLERANCE[dtype])
    torch.testing.assert_close(ring, wanted_ring, **TOLERANCE[dtype])
    assert torch.equal(ring[case.batch], inputs.ring[case.batch])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_ring(device: torch.device, case: Case, dtype: torch.dtype) -> None:
    check(case, device, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", MIMI, ids=str)
def test_full_size(case: Case, dtype: torch.dtype) -> None:
    check(case, torch.device("cuda"), dtype)


def test_a_row_does_not_depend_on_what_others_hold(device: torch.device) -> None:
    inputs = build(CASES[1], device)
    wanted = kernel.ring_attention(*arguments(inputs, inputs.ring.clone()))
    ring = inputs.ring.clone()
    ring[inputs.targets[0]] = float("nan")
    result = kernel.ring_attention(*arguments(inputs, ring))
    assert torch.equal(result[1:], wanted[1:])


def test_cells_before_the_beginning_are_not_read(device: torch.device) -> None:
    inputs = build(CASES[0], device)
    ring = torch.full_like(inputs.ring, float("nan"))
    wanted = inputs.qkv[:, :, 2].flatten(2)
    torch.testing.assert_close(kernel.ring_attention(*arguments(inputs, ring)), wanted)


def test_a_ring_too_short_is_refused(device: torch.device) -> None:
    inputs = build(CASES[2], device)
    with pytest.raises(ValueError, match="too short"):
        ring_attention(*arguments(inputs, inputs.ring[:, :40]))
