"""Causal convolutions on the device against their reference."""

from __future__ import annotations

import pytest
import torch
from antiphon_kernels.causal_taps import causal_taps, kernel, reference
from antiphon_kernels.causal_taps.cases import CASES, MIMI, Case, Inputs, build

# bfloat16 is rounded to the nearest on the device and towards zero in the interpreter.
TOLERANCE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def run(inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    return kernel.causal_taps(
        inputs.x, inputs.old, inputs.weights, inputs.bias, inputs.added, case.elu
    )


def check(case: Case, device: torch.device, dtype: torch.dtype) -> None:
    inputs = build(case, device, dtype)
    wanted, tail = reference.causal_taps(
        inputs.x, inputs.old, (inputs.weight,), inputs.bias, inputs.added, elu=case.elu
    )
    result, kept = run(inputs, case)
    torch.testing.assert_close(result, wanted, **TOLERANCE[dtype])
    torch.testing.assert_close(kept, tail, **TOLERANCE[torch.float16])


@DTYPES
@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_context(device: torch.device, case: Case, dtype: torch.dtype) -> None:
    check(case, device, dtype)


@pytest.mark.gpu
@DTYPES
@pytest.mark.parametrize("case", MIMI, ids=str)
def test_full_size(case: Case, dtype: torch.dtype) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    check(case, torch.device("cuda"), dtype)


def test_a_row_of_nan_stays_alone(device: torch.device) -> None:
    case = CASES[2]
    inputs = build(case, device, torch.float32)
    wanted, tail = run(inputs, case)
    inputs.x[1], inputs.old[3] = float("nan"), float("nan")
    result, kept = run(inputs, case)
    others = [0, 2, 4]
    assert torch.equal(result[others], wanted[others])
    assert torch.equal(kept[others], tail[others])


def test_shapes_that_do_not_fit_are_refused(device: torch.device) -> None:
    inputs = build(CASES[0], device, torch.float32)
    with pytest.raises(ValueError, match="context"):
        causal_taps(inputs.x, inputs.old[:, 1:], inputs.weights, inputs.bias)
    with pytest.raises(ValueError, match="added"):
        causal_taps(inputs.x, inputs.old, inputs.weights, inputs.bias, inputs.x)
