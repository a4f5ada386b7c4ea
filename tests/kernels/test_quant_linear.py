"""The quantised linear against its reference, and the same bits for every batch."""

from __future__ import annotations

import pytest
import torch
from antiphon_kernels.quant_linear import FORMATS, PackedWeight, gather_rows, pack, quant_linear
from antiphon_kernels.quant_linear import reference as ref
from antiphon_kernels.quant_linear.cases import (
    FLOAT_SHAPES,
    ROW_COUNTS,
    SHAPES,
    Shape,
    random_blocks,
)
from antiphon_kernels.quant_linear.formats import FLOAT_DTYPES

QUANTISED = [kind for kind in FORMATS if kind not in FLOAT_DTYPES]
EVERY_WEIGHT = [(kind, shape) for kind in QUANTISED for shape in SHAPES] + [
    (kind, shape) for kind in FLOAT_DTYPES for shape in FLOAT_SHAPES
]


def make_weight(kind: str, shape: Shape) -> PackedWeight:
    if kind in FLOAT_DTYPES:
        generator = torch.Generator().manual_seed(1)
        values = torch.randn(shape.rows, shape.columns, generator=generator)
        return pack(values.to(FLOAT_DTYPES[kind]))
    return pack(random_blocks(kind, shape, scale=0.05), kind, (shape.rows, shape.columns))


@pytest.mark.parametrize(
    ("kind", "shape"), EVERY_WEIGHT, ids=[f"{kind}-{shape}" for kind, shape in EVERY_WEIGHT]
)
def test_product_is_the_reference_and_the_same_bits_for_every_batch(
    isa: str, kind: str, shape: Shape
) -> None:
    weight = make_weight(kind, shape)
    x = torch.randn(max(ROW_COUNTS), shape.columns, generator=torch.Generator().manual_seed(2))
    whole = quant_linear(x, weight)
    exact = x.double() @ ref.dequantise(weight).double().T
    error = (whole - exact).norm() / exact.norm()
    assert error < 2e-6
    for rows in ROW_COUNTS:
        assert torch.equal(quant_linear(x[:rows], weight), whole[:rows])
    assert torch.equal(quant_linear(x[77:78], weight), whole[77:78])


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F32"])
def test_result_does_not_depend_on_the_thread_count(isa: str, threads: int, kind: str) -> None:
    weight = make_weight(kind, Shape(200, 1280))
    x = torch.randn(70, 1280, generator=torch.Generator().manual_seed(5))
    alone = torch.cat([quant_linear(row[None], weight) for row in x])
    assert torch.equal(quant_linear(x, weight), alone)


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("outputs", [64, 33])
def test_bias_and_a_strided_output(isa: str, rows: int, outputs: int) -> None:
    weight = make_weight("Q4_1", Shape(outputs, 256))
    wide = torch.randn(rows, 300, generator=torch.Generator().manual_seed(3))
    x = wide[:, 20:276]
    bias = torch.randn(outputs, generator=torch.Generator().manual_seed(4))
    plain = quant_linear(x.contiguous(), weight)
    target = torch.full((rows, 100), 7.0)
    result = quant_linear(x, weight, bias, target[:, 10 : 10 + outputs])
    assert torch.equal(result, plain + bias)
    assert torch.equal(target[:, 10 : 10 + outputs], result)
    assert (target[:, :10] == 7.0).all() and (target[:, 10 + outputs :] == 7.0).all()


@pytest.mark.parametrize("kind", list(FORMATS))
def test_gathered_rows_are_the_reference(isa: str, kind: str) -> None:
    weight = make_weight(kind, Shape(77, 512))
    ids = torch.tensor([0, 76, 31, 32, 5, 5, 64])
    assert torch.equal(gather_rows(weight, ids), ref.gather_rows(weight, ids))


def test_bad_arguments_are_refused(isa: str) -> None:
    weight = make_weight("Q4_1", Shape(33, 256))
    with pytest.raises(ValueError, match=r"x \(2, 255\) does not fit weight \(33, 256\)"):
        quant_linear(torch.zeros(2, 255), weight)
    with pytest.raises(ValueError, match=r"out \(2, 32\), expected \(2, 33\)"):
        quant_linear(torch.zeros(2, 256), weight, out=torch.zeros(2, 32))
    with pytest.raises(IndexError, match=r"outside \[0, 33\)"):
        gather_rows(weight, torch.tensor([0, 33]))


def test_no_rows_give_no_results(isa: str) -> None:
    weight = make_weight("Q8_0", Shape(33, 256))
    assert quant_linear(torch.zeros(0, 256), weight).shape == (0, 33)
    assert gather_rows(weight, torch.zeros(0, dtype=torch.int64)).shape == (0, 256)
