"""The device's linear layer of few rows against its fp32 reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from antiphon_kernels.small_linear import kernel, reference, small_linear
from antiphon_kernels.small_linear.cases import CASES, Arguments, Case, build

TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},
}


def launch(
    case: Case,
    arguments: Arguments,
    out: torch.Tensor | None = None,
    rows: slice = slice(None),
    shape: kernel.Shape | None = None,
) -> torch.Tensor:
    residual = arguments.residual
    return kernel.small_linear(
        arguments.x[rows],
        arguments.weight,
        arguments.bias,
        arguments.norm_weight,
        1e-6,
        case.plus_one,
        case.activation,
        None if residual is None else residual[rows],
        out,
        shape,
    )


def expected(case: Case, arguments: Arguments) -> torch.Tensor:
    return reference.small_linear(
        arguments.x,
        arguments.weight,
        arguments.bias,
        norm_weight=arguments.norm_weight,
        eps=1e-6,
        plus_one=case.plus_one,
        activation=case.activation,
        residual=arguments.residual,
    )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_small_linear(device: torch.device, case: Case, dtype: torch.dtype) -> None:
    arguments = build(case, dtype, device)
    result = launch(case, arguments)
    assert result.dtype is dtype
    torch.testing.assert_close(result.float(), expected(case, arguments), **TOLERANCE[dtype])


@pytest.mark.parametrize("case", [c for c in CASES if 1 < c.rows <= 8], ids=str)
def test_a_few_rows_on_plain_multipliers(device: torch.device, case: Case) -> None:
    """Norms, gates and residuals of each row are its own."""
    for dtype in TOLERANCE:
        arguments = build(case, dtype, device)
        result = launch(case, arguments, shape=kernel.Shape(4, 128, 4))
        torch.testing.assert_close(result.float(), expected(case, arguments), **TOLERANCE[dtype])


def test_weights_may_be_asked_for_ahead(device: torch.device) -> None:
    case = CASES[7]
    arguments = build(case, torch.bfloat16, device)
    plain = launch(case, arguments, shape=kernel.Shape(16, 128, 2, 3))
    ahead = launch(case, arguments, shape=kernel.Shape(16, 128, 2, 3, ahead=16))
    assert torch.equal(plain, ahead)


@pytest.mark.parametrize("case", [CASES[4], CASES[7]], ids=str)
def test_a_row_is_the_same_in_any_company(device: torch.device, case: Case) -> None:
    arguments = build(case, torch.bfloat16, device)
    together = launch(case, arguments)
    for rows in (slice(0, 2), slice(case.rows - 3, case.rows)):
        assert torch.equal(launch(case, arguments, rows=rows), together[rows])


def test_the_residual_stream_is_updated_in_place(device: torch.device) -> None:
    case = CASES[4]
    arguments = build(case, torch.float32, device)
    wanted = expected(case, arguments)
    assert arguments.residual is not None
    result = launch(case, arguments, out=arguments.residual)
    assert result is arguments.residual
    torch.testing.assert_close(result, wanted, **TOLERANCE[torch.float32])


def test_logits_are_fp32_and_rows_may_be_strided(device: torch.device) -> None:
    case = Case(2, 40, 96, norm=True)
    arguments = build(case, torch.bfloat16, device)
    wide = torch.full((2, 200), float("nan"), dtype=torch.bfloat16, device=device)
    wide[:, 8:104] = arguments.x
    out = torch.full((2, 64), 5.0, device=device)
    launch(case, replace(arguments, x=wide[:, 8:104]), out=out[:, :40])
    torch.testing.assert_close(out[:, :40], expected(case, arguments), **TOLERANCE[torch.bfloat16])
    assert (out[:, 40:] == 5.0).all()


def test_the_public_function_runs_where_its_input_lies(device: torch.device) -> None:
    case = CASES[7]
    arguments = build(case, torch.float32, device)
    result = small_linear(
        arguments.x,
        arguments.weight,
        norm_weight=arguments.norm_weight,
        eps=1e-6,
        activation=case.activation,
    )
    torch.testing.assert_close(result, expected(case, arguments), **TOLERANCE[torch.float32])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "relu"}, "none of"),
        ({"bias": torch.zeros(3)}, r"bias is \(3,\), expected \(6,\)"),
        ({"residual": torch.zeros(2, 6), "activation": "silu"}, r"expected \(2, 3\)"),
        ({"norm_weight": torch.zeros(6)}, r"norm_weight is \(6,\), expected \(4,\)"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    options: dict[str, torch.Tensor | str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        small_linear(torch.zeros(2, 4), torch.zeros(6, 4), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("width", "depth", "gated", "outputs", "step"),
    [
        (6144, 4096, False, 16, 512),
        (4096, 4096, False, 8, 1024),
        (12288, 4096, True, 4, 1024),
        (151936, 1024, False, 8, 1024),
        (4096, 1024, False, 16, 512),
        (1024, 3072, False, 4, 2048),
        (3072, 1024, True, 4, 512),
        (10, 7, False, 16, 16),
    ],
)
def test_tile_of_a_single_row(width: int, depth: int, gated: bool, outputs: int, step: int) -> None:
    shape = kernel.choose_shape(1, width, depth, gated, 2, 132)
    assert (shape.outputs, shape.depth) == (outputs, step)


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="17 rows, at most 16"):
        launch(CASES[0], build(replace(CASES[0], rows=17), torch.float32, torch.device("cpu")))
