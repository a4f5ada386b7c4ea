"""The quantised linear against its reference, and the same bits for every batch."""

from __future__ import annotations

from collections.abc import Iterator

import antiphon_kernels
import pytest
import torch
from antiphon_kernels.cpu import build, library
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


@pytest.fixture
def int16() -> Iterator[None]:
    """Runs the test with rounded activations."""
    antiphon_kernels.set_products("int16")
    yield
    antiphon_kernels.set_products("float32")


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


def activations(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Normal values with a few that are much larger, as models have them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    x[torch.rand(rows, columns, generator=generator) < 0.002] *= 100
    return x


INT16_SHAPES = (Shape(33, 512), Shape(1, 256), Shape(200, 1792))
INT16_WEIGHTS = [(kind, shape) for kind in QUANTISED for shape in INT16_SHAPES]


@pytest.mark.parametrize(
    ("kind", "shape"), INT16_WEIGHTS, ids=[f"{kind}-{shape}" for kind, shape in INT16_WEIGHTS]
)
def test_int16_product_is_the_integer_reference_and_the_same_bits_for_every_batch(
    byte_isa: str, int16: None, kind: str, shape: Shape
) -> None:
    weight = make_weight(kind, shape)
    x = activations(max(ROW_COUNTS), shape.columns, seed=6)
    whole = quant_linear(x, weight)
    some = slice(0, 20)
    exact = ref.quant_linear_int16(x[some], weight)
    # A code may differ by one where its product with the inverse scale is fused; fp32 sums differ
    # where fp64 rounds a tie, or without a fused multiply-add on the portable set.
    tolerance = 3e-6 if byte_isa == "portable" else 1e-6
    assert (whole[some] - exact).norm() <= tolerance * exact.norm()
    for rows in ROW_COUNTS:
        assert torch.equal(quant_linear(x[:rows], weight), whole[:rows])
    assert torch.equal(quant_linear(x[77:78], weight), whole[77:78])


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_0", "Q6_K"])
def test_int16_result_does_not_depend_on_the_thread_count(
    byte_isa: str, int16: None, threads: int, kind: str
) -> None:
    weight = make_weight(kind, Shape(200, 1280))
    x = activations(70, 1280, seed=5)
    alone = torch.cat([quant_linear(row[None], weight) for row in x])
    assert torch.equal(quant_linear(x, weight), alone)
    parts = torch.cat([quant_linear(part, weight) for part in x.split([1, 30, 9, 30])])
    assert torch.equal(parts, alone)


@pytest.mark.parametrize("kind", QUANTISED)
def test_int16_sums_are_exact_at_the_ends_of_the_codes(
    byte_isa: str, int16: None, kind: str
) -> None:
    entry = FORMATS[kind]
    data = torch.full((32, 256 // entry.block * entry.block_bytes), 0xFF, dtype=torch.uint8)
    data[1::2] = 0x80
    blocks = data.view(32, -1, entry.block_bytes)
    for offset in (0, 2) if entry.has_min else ((208,) if kind == "Q6_K" else (0,)):
        blocks[..., offset : offset + 2] = torch.tensor([0.5]).half().view(torch.uint8)
    weight = pack(data, kind, (32, 256))
    x = torch.full((9, 256), ref.LARGEST_CODE)
    x[1::2] = -ref.LARGEST_CODE
    x[2:4, 1::2] = 32384.0  # High byte 127, low byte -128.
    expected = ref.quant_linear_int16(x, weight)
    assert torch.equal(quant_linear(x, weight), expected)
    assert torch.equal(quant_linear(x[:1], weight), expected[:1])


def test_int16_bias_and_a_strided_output(byte_isa: str, int16: None) -> None:
    weight = make_weight("Q4_1", Shape(33, 256))
    for rows in (1, 9):
        wide = activations(rows, 300, seed=3)
        bias = torch.randn(33, generator=torch.Generator().manual_seed(4))
        plain = quant_linear(wide[:, 20:276].contiguous(), weight)
        target = torch.full((rows, 100), 7.0)
        result = quant_linear(wide[:, 20:276], weight, bias, target[:, 10:43])
        assert torch.equal(result, plain + bias)
        assert (target[:, :10] == 7.0).all() and (target[:, 43:] == 7.0).all()


def test_int16_rounding_shows_what_is_not_finite_and_keeps_what_is_tiny_apart(
    byte_isa: str, int16: None
) -> None:
    weight = make_weight("Q8_0", Shape(64, 96))
    x = activations(5, 96, seed=8)
    x[1, 40] = float("nan")
    x[2, 7] = float("-inf")
    x[3] = 1e-35
    x[4, 32:64] = 0.0
    result = quant_linear(x, weight)
    assert result[1].isnan().all() and result[2].isnan().all()
    assert (result[3] == 0).all()
    assert torch.equal(result[[0, 4]], quant_linear(x[[0, 4]], weight))
    torch.testing.assert_close(
        result[[0, 4]], ref.quant_linear_int16(x[[0, 4]], weight), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("kind", list(FLOAT_DTYPES))
def test_formats_without_codes_keep_float32_products_and_are_counted(
    int16: None, byte_isa: str, kind: str
) -> None:
    weight = make_weight(kind, Shape(31, 37))
    x = activations(3, 37, seed=1)
    name = f"quant_linear: {kind} has no integer codes"
    before = antiphon_kernels.fallbacks.get(name, 0)
    rounded = quant_linear(x, weight)
    assert antiphon_kernels.fallbacks[name] == before + 1
    antiphon_kernels.set_products("float32")
    assert torch.equal(rounded, quant_linear(x, weight))
    assert antiphon_kernels.fallbacks[name] == before + 1


def test_auto_products_are_int16_where_the_instructions_are(int16: None, isas: list[str]) -> None:
    for isa in set(isas) - {"portable"}:
        with library.use(isa):
            antiphon_kernels.set_products("auto")
            expected = "int16" if isa in build.BYTE_DOT_ISAS else "float32"
            assert antiphon_kernels.products() == expected
    with library.use("reference"):
        antiphon_kernels.set_products("auto")
        assert antiphon_kernels.products() == "float32"
    with pytest.raises(ValueError, match="must be one of float32, int16, auto, got 'int4'"):
        antiphon_kernels.set_products("int4")
