"""Dequantised values against the gguf package, an independent reader."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from antiphon_kernels.cpu import library
from antiphon_kernels.quant_linear import FORMATS, dequantise, gather_rows, pack, stack
from antiphon_kernels.quant_linear.cases import Shape, random_blocks
from antiphon_kernels.quant_linear.formats import FLOAT_DTYPES
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

QUANTISED = [kind for kind in FORMATS if kind not in FLOAT_DTYPES]


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("scale", [1.0, 1e-6], ids=["normal", "subnormal"])
@pytest.mark.parametrize("path", ["native", "reference"])
def test_dequantise_equals_gguf(kind: str, scale: float, path: str) -> None:
    shape = Shape(77, 2048)
    blocks = random_blocks(kind, shape, seed=3, scale=scale)
    expected = dequantize(blocks.numpy(), GGMLQuantizationType[kind])
    with library.use("reference") if path == "reference" else nullcontext():
        weight = pack(blocks, kind, (shape.rows, shape.columns))
    np.testing.assert_array_equal(dequantise(weight).numpy(), expected)


@pytest.mark.parametrize("kind", list(FORMATS))
def test_gather_rows_equals_dequantise(kind: str) -> None:
    shape = Shape(77, 512)
    if kind in FLOAT_DTYPES:
        weight = pack(torch.randn(shape.rows, shape.columns).to(FLOAT_DTYPES[kind]))
    else:
        weight = pack(random_blocks(kind, shape), kind, (shape.rows, shape.columns))
    ids = torch.tensor([0, 76, 31, 32, 5, 5, 64])
    assert torch.equal(gather_rows(weight, ids), dequantise(weight)[ids])
    assert torch.equal(gather_rows(weight, ids.int()), dequantise(weight)[ids])


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_0", "Q6_K"])
def test_stacked_weights_are_their_rows_in_order(kind: str) -> None:
    parts = [
        pack(random_blocks(kind, Shape(rows, 256), seed=rows), kind, (rows, 256))
        for rows in (64, 32, 33)
    ]
    whole = stack(parts)
    assert whole.shape == (129, 256)
    assert torch.equal(dequantise(whole), torch.cat([dequantise(part) for part in parts]))


def test_stacking_refuses_what_does_not_line_up() -> None:
    a = pack(torch.randn(33, 64))
    with pytest.raises(ValueError, match="cannot be stacked"):
        stack([a, a])
    with pytest.raises(ValueError, match="cannot be stacked"):
        stack([pack(torch.randn(32, 64)), pack(torch.randn(32, 64).bfloat16())])


def test_pack_refuses_unknown_kind_and_wrong_bytes() -> None:
    with pytest.raises(ValueError, match="unknown weight format 'Q9_9', expected one of F32"):
        pack(torch.zeros(1, 18, dtype=torch.uint8), "Q9_9", (1, 32))
    with pytest.raises(ValueError, match=r"got bytes \(1, 18\), expected \(1, 20\)"):
        pack(torch.zeros(1, 18, dtype=torch.uint8), "Q4_1", (1, 32))
    with pytest.raises(ValueError, match="multiple of 256"):
        pack(torch.zeros(1, 144, dtype=torch.uint8), "Q4_K", (1, 288))
