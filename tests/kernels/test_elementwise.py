"""Row-wise operations against their references."""

from __future__ import annotations

import pytest
import torch
from antiphon_kernels.gated_activation import gelu_tanh_mul, silu_mul
from antiphon_kernels.gated_activation import reference as gated_ref
from antiphon_kernels.gated_activation.cases import CASES as GATED_CASES
from antiphon_kernels.rms_norm import add_rms_norm, rms_norm
from antiphon_kernels.rms_norm import reference as norm_ref
from antiphon_kernels.rms_norm.cases import CASES as NORM_CASES
from antiphon_kernels.rms_norm.cases import Case as NormCase
from antiphon_kernels.rope import reference as rope_ref
from antiphon_kernels.rope import rope
from antiphon_kernels.rope.cases import CASES as ROPE_CASES
from antiphon_kernels.rope.cases import Case as RopeCase
from antiphon_kernels.store_kv import store_kv
from antiphon_kernels.store_kv.cases import CASES as STORE_CASES
from antiphon_kernels.store_kv.cases import Case as StoreCase

CLOSE = {"rtol": 2e-6, "atol": 1e-6}


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("case", NORM_CASES, ids=str)
def test_rms_norm(isa: str, case: NormCase) -> None:
    shape = (case.rows, case.heads, case.dim) if case.heads else (case.rows, case.dim)
    x, weight = rand(*shape) * 3, rand(case.dim, seed=1)
    expected = norm_ref.rms_norm(x, weight, case.eps, plus_one=case.plus_one)
    result = rms_norm(x, weight, case.eps, plus_one=case.plus_one)
    torch.testing.assert_close(result, expected, **CLOSE)
    for row in range(0, case.rows, 13):
        alone = rms_norm(x[row : row + 1], weight, case.eps, plus_one=case.plus_one)
        assert torch.equal(alone, result[row : row + 1])


def test_rms_norm_in_place_on_heads_of_a_fused_row(isa: str) -> None:
    fused = rand(5, 700)
    heads = fused[:, 100:420].view(5, 5, 64)
    weight = rand(64, seed=1)
    expected = norm_ref.rms_norm(heads.clone(), weight, 1e-6)
    untouched = fused[:, :100].clone()
    rms_norm(heads, weight, 1e-6, out=heads)
    torch.testing.assert_close(heads, expected, **CLOSE)
    assert torch.equal(fused[:, :100], untouched)


@pytest.mark.parametrize("case", [c for c in NORM_CASES if not c.heads], ids=str)
def test_add_rms_norm(isa: str, case: NormCase) -> None:
    x, residual = rand(case.rows, case.dim), rand(case.rows, case.dim, seed=2)
    weight = rand(case.dim, seed=1)
    normed, total = add_rms_norm(x, residual, weight, case.eps, plus_one=case.plus_one)
    expected, expected_total = norm_ref.add_rms_norm(
        x, residual, weight, case.eps, plus_one=case.plus_one
    )
    assert torch.equal(total, expected_total)
    torch.testing.assert_close(normed, expected, **CLOSE)
    assert torch.equal(normed, rms_norm(total, weight, case.eps, plus_one=case.plus_one))


@pytest.mark.parametrize("case", ROPE_CASES, ids=str)
def test_rope(isa: str, case: RopeCase) -> None:
    q = rand(case.rows, case.heads, case.head_dim)
    k = rand(case.rows, case.kv_heads, case.head_dim, seed=1)
    angles = rand(40, case.rotary_dim // 2, seed=2)
    positions = torch.arange(case.rows, dtype=torch.int32) * 7 % 40
    expected_q, expected_k = q.clone(), k.clone()
    rope_ref.rope(expected_q, expected_k, positions, angles.cos(), angles.sin())
    rope(q, k, positions, angles.cos(), angles.sin())
    torch.testing.assert_close(q, expected_q, **CLOSE)
    torch.testing.assert_close(k, expected_k, **CLOSE)


def test_rope_refuses_a_position_outside_the_tables(isa: str) -> None:
    q, k = rand(2, 1, 8), rand(2, 1, 8)
    before = q.clone()
    with pytest.raises(IndexError, match=r"outside \[0, 4\)"):
        rope(q, k, torch.tensor([0, 4], dtype=torch.int32), rand(4, 4), rand(4, 4))
    assert torch.equal(q, before)


@pytest.mark.parametrize("name", ["silu_mul", "gelu_tanh_mul"])
@pytest.mark.parametrize(("rows", "width"), GATED_CASES)
def test_gated_activation(isa: str, name: str, rows: int, width: int) -> None:
    operation = silu_mul if name == "silu_mul" else gelu_tanh_mul
    fused = rand(rows, 2 * width) * 4
    fused[0, 0], fused[-1, width - 1] = 200.0, -200.0
    expected = getattr(gated_ref, name)(fused[:, :width], fused[:, width:])
    torch.testing.assert_close(operation(fused), expected, **CLOSE)
    pair = operation(fused[:, :width].contiguous(), fused[:, width:].contiguous())
    assert torch.equal(pair, operation(fused))


@pytest.mark.parametrize("case", STORE_CASES, ids=str)
def test_store_kv(isa: str, case: StoreCase) -> None:
    width = case.kv_heads * case.head_dim
    fused = rand(case.rows, 2 * width + 3)
    k = fused[:, :width].view(case.rows, case.kv_heads, case.head_dim)
    v = fused[:, width : 2 * width].view(case.rows, case.kv_heads, case.head_dim)
    slots = torch.randperm(case.slots, generator=torch.Generator().manual_seed(1))[: case.rows]
    k_cache = torch.zeros(case.slots, case.kv_heads, case.head_dim)
    v_cache = torch.zeros_like(k_cache)
    store_kv(k, v, k_cache, v_cache, slots)
    assert torch.equal(k_cache[slots], k)
    assert torch.equal(v_cache[slots], v)
    left = torch.ones(case.slots, dtype=torch.bool)
    left[slots] = False
    assert not k_cache[left].any() and not v_cache[left].any()


def test_store_kv_refuses_a_slot_outside_the_cache(isa: str) -> None:
    cache = torch.zeros(4, 1, 8)
    with pytest.raises(IndexError, match=r"outside \[0, 4\)"):
        store_kv(rand(2, 1, 8), rand(2, 1, 8), cache, cache.clone(), torch.tensor([0, 4]))
    assert not cache.any()
