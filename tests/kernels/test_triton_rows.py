"""Row-wise device kernels against their references: norms, activations, rotation, stores."""

from __future__ import annotations

import pytest
import torch
from antiphon_kernels.embedding import kernel as embedding_kernel
from antiphon_kernels.embedding import reference as embedding_ref
from antiphon_kernels.embedding.cases import CASES as EMBEDDING_CASES
from antiphon_kernels.gated_activation import kernel as gated_kernel
from antiphon_kernels.gated_activation import reference as gated_ref
from antiphon_kernels.gated_activation.cases import CASES as GATED_CASES
from antiphon_kernels.publish import Destinations
from antiphon_kernels.publish import kernel as publish_kernel
from antiphon_kernels.publish import reference as publish_ref
from antiphon_kernels.publish.cases import CASES as PUBLISH_CASES
from antiphon_kernels.publish.cases import pack
from antiphon_kernels.qk_rope_store import kernel as fused_kernel
from antiphon_kernels.qk_rope_store import qk_rope_store
from antiphon_kernels.qk_rope_store import reference as fused_ref
from antiphon_kernels.qk_rope_store.cases import CASES as FUSED_CASES
from antiphon_kernels.qk_rope_store.cases import Case as FusedCase
from antiphon_kernels.qk_rope_store.cases import build as build_fused
from antiphon_kernels.rms_norm import kernel as norm_kernel
from antiphon_kernels.rms_norm import reference as norm_ref
from antiphon_kernels.rms_norm.cases import CASES as NORM_CASES
from antiphon_kernels.rms_norm.cases import Case as NormCase
from antiphon_kernels.rope import kernel as rope_kernel
from antiphon_kernels.rope import reference as rope_ref
from antiphon_kernels.rope.cases import CASES as ROPE_CASES
from antiphon_kernels.rope.cases import Case as RopeCase
from antiphon_kernels.store_kv import kernel as store_kernel
from antiphon_kernels.store_kv.cases import CASES as STORE_CASES
from antiphon_kernels.store_kv.cases import Case as StoreCase

# Stores of bfloat16 round to the nearest on the device and towards zero in the interpreter.
TOLERANCE = {
    torch.float32: {"rtol": 1e-5, "atol": 2e-6},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2},
}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def rand(device: torch.device, dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device, dtype)


@DTYPES
@pytest.mark.parametrize("case", NORM_CASES, ids=str)
def test_rms_norm(device: torch.device, case: NormCase, dtype: torch.dtype) -> None:
    shape = (case.rows, case.heads, case.dim) if case.heads else (case.rows, case.dim)
    x, weight = rand(device, dtype, *shape) * 3, rand(device, torch.float32, case.dim, seed=1)
    wanted = norm_ref.rms_norm(x, weight, case.eps, plus_one=case.plus_one)
    result = norm_kernel.rms_norm(x, weight, case.eps, case.plus_one, None)
    torch.testing.assert_close(result, wanted, **TOLERANCE[dtype])
    alone = norm_kernel.rms_norm(x[-1:], weight, case.eps, case.plus_one, None)
    assert torch.equal(alone, result[-1:])


def test_rms_norm_in_place_on_heads_of_a_fused_row(device: torch.device) -> None:
    fused = rand(device, torch.float32, 5, 700)
    heads = fused[:, 100:420].view(5, 5, 64)
    weight = rand(device, torch.float32, 64, seed=1)
    wanted = norm_ref.rms_norm(heads.clone(), weight, 1e-6)
    untouched = fused[:, :100].clone()
    norm_kernel.rms_norm(heads, weight, 1e-6, False, heads)
    torch.testing.assert_close(heads, wanted, **TOLERANCE[torch.float32])
    assert torch.equal(fused[:, :100], untouched)


@DTYPES
@pytest.mark.parametrize("case", [c for c in NORM_CASES if not c.heads], ids=str)
def test_add_rms_norm(device: torch.device, case: NormCase, dtype: torch.dtype) -> None:
    x, residual = (rand(device, dtype, case.rows, case.dim, seed=seed) for seed in (0, 2))
    weight = rand(device, torch.float32, case.dim, seed=1)
    wanted, wanted_sum = norm_ref.add_rms_norm(
        x, residual, weight, case.eps, plus_one=case.plus_one
    )
    out = torch.empty_like(x), residual
    normed, total = norm_kernel.add_rms_norm(x, residual, weight, case.eps, case.plus_one, out)
    assert total is residual
    torch.testing.assert_close(total, wanted_sum, **TOLERANCE[dtype])
    torch.testing.assert_close(normed, wanted, **TOLERANCE[dtype])


@DTYPES
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("rows", "width"), GATED_CASES)
def test_gated_activation(
    device: torch.device, activation: str, rows: int, width: int, dtype: torch.dtype
) -> None:
    fused = rand(device, dtype, rows, 2 * width) * 4
    fused[0, 0], fused[-1, width - 1] = 200.0, -200.0
    gate, up = fused.chunk(2, dim=1)
    wanted = getattr(gated_ref, f"{activation}_mul")(gate.float(), up.float())
    result = gated_kernel.gated_activation(activation, gate, up, None)
    torch.testing.assert_close(result, wanted.to(dtype), **TOLERANCE[dtype])


@DTYPES
@pytest.mark.parametrize("case", STORE_CASES, ids=str)
def test_store_kv(device: torch.device, case: StoreCase, dtype: torch.dtype) -> None:
    width = case.kv_heads * case.head_dim
    fused = rand(device, dtype, case.rows, 2 * width + 3)
    k = fused[:, :width].view(case.rows, case.kv_heads, case.head_dim)
    v = fused[:, width : 2 * width].view(case.rows, case.kv_heads, case.head_dim)
    slots = torch.randperm(case.slots, generator=torch.Generator().manual_seed(1))[: case.rows]
    slots = slots.to(device)
    k_cache = torch.full((case.slots, case.kv_heads, case.head_dim), 9.0, device=device).to(dtype)
    v_cache = k_cache.clone()
    store_kernel.store_kv(k, v, k_cache, v_cache, slots)
    assert torch.equal(k_cache[slots], k)
    assert torch.equal(v_cache[slots], v)
    left = torch.ones(case.slots, dtype=torch.bool, device=device)
    left[slots] = False
    assert (k_cache[left] == 9.0).all() and (v_cache[left] == 9.0).all()


@DTYPES
@pytest.mark.parametrize("case", ROPE_CASES, ids=str)
def test_rope(device: torch.device, case: RopeCase, dtype: torch.dtype) -> None:
    q = rand(device, dtype, case.rows, case.heads, case.head_dim)
    k = rand(device, dtype, case.rows, case.kv_heads, case.head_dim, seed=1)
    angles = rand(device, torch.float32, 40, case.rotary_dim // 2, seed=2)
    positions = torch.arange(case.rows, dtype=torch.int32, device=device) * 7 % 40
    wanted_q, wanted_k = q.clone(), k.clone()
    rope_ref.rope(wanted_q, wanted_k, positions, angles.cos(), angles.sin())
    rope_kernel.rope(q, k, positions, angles.cos(), angles.sin())
    torch.testing.assert_close(q, wanted_q, **TOLERANCE[dtype])
    torch.testing.assert_close(k, wanted_k, **TOLERANCE[dtype])


@pytest.mark.parametrize("path", ["kernel", "composed"])
@DTYPES
@pytest.mark.parametrize("case", FUSED_CASES, ids=str)
def test_qk_rope_store(
    device: torch.device, case: FusedCase, dtype: torch.dtype, path: str
) -> None:
    wanted, given = build_fused(case, dtype), build_fused(case, dtype)
    fused_ref.qk_rope_store(**vars(wanted), heads=case.heads, eps=1e-6, plus_one=case.plus_one)
    tensors = {
        name: value if value is None else value.to(device) for name, value in vars(given).items()
    }
    if path == "kernel":
        fused_kernel.qk_rope_store(**tensors, heads=case.heads, eps=1e-6, plus_one=case.plus_one)
    else:
        qk_rope_store(**tensors, heads=case.heads, eps=1e-6, plus_one=case.plus_one)
    # The composed form rounds to the dtype after each of its operations.
    close = TOLERANCE[dtype] | ({"atol": 5e-2} if path == "composed" else {})
    width = case.heads * case.head_dim
    torch.testing.assert_close(tensors["qkv"].cpu()[:, :width], wanted.qkv[:, :width], **close)
    for name in ("k_cache", "v_cache"):
        torch.testing.assert_close(
            tensors[name].cpu(), getattr(wanted, name), **close, equal_nan=True
        )


@DTYPES
@pytest.mark.parametrize(("rows", "vocabulary", "hidden", "drawn_rows"), EMBEDDING_CASES)
def test_embedding(
    device: torch.device,
    rows: int,
    vocabulary: int,
    hidden: int,
    drawn_rows: int,
    dtype: torch.dtype,
) -> None:
    weight = rand(device, dtype, vocabulary, hidden)
    drawn = (torch.arange(drawn_rows, device=device) * 5 + 2) % vocabulary
    ids = torch.arange(rows, dtype=torch.int32, device=device) * 3 % vocabulary
    ids[::2] = -1 - torch.arange(rows, device=device)[::2].int() % drawn_rows
    wanted, wanted_tokens = embedding_ref.embedding(ids, weight, drawn, scale=1.5)
    tokens = torch.full((rows,), -7, dtype=torch.int32, device=device)
    result = embedding_kernel.embedding(ids, weight, drawn, 1.5, None, tokens)
    assert torch.equal(tokens, wanted_tokens)
    torch.testing.assert_close(result, wanted, **TOLERANCE[dtype])


@pytest.mark.parametrize("path", ["kernel", "reference"])
@pytest.mark.parametrize("members", PUBLISH_CASES)
def test_publish_moves_the_counted_bytes_and_no_others(
    device: torch.device, members: tuple[tuple[int, int], ...], path: str
) -> None:
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.full((size,), 173, dtype=torch.uint8, device=device) for _, size in members]
    destinations = Destinations(tensors)
    payloads = [
        torch.randint(256, (count,), generator=generator, dtype=torch.uint8) for count, _ in members
    ]
    arena = pack(destinations, payloads).to(device)
    if path == "kernel":
        publish_kernel.publish(arena, destinations.addresses, destinations.largest_bytes)
    else:
        publish_ref.publish(arena, destinations.tensors)
    for tensor, payload in zip(tensors, payloads, strict=True):
        assert torch.equal(tensor[: payload.numel()].cpu(), payload)
        assert (tensor[payload.numel() :] == 173).all()


def test_publish_keeps_the_bits_of_any_dtype(device: torch.device) -> None:
    tensors = [
        torch.zeros(5, dtype=torch.bfloat16, device=device),
        torch.zeros(3, dtype=torch.int64, device=device),
        torch.zeros(3, dtype=torch.float32, device=device),
    ]
    values = [
        torch.tensor([float("nan"), -0.0, 1e-40, float("inf"), 3.0]).bfloat16(),
        torch.tensor([-1, 2**62, 0]),
        torch.tensor([-0.0, float("nan"), 1e-45]),
    ]
    destinations = Destinations(tensors)
    arena = pack(destinations, [value.view(torch.uint8) for value in values]).to(device)
    publish_kernel.publish(arena, destinations.addresses, destinations.largest_bytes)
    for tensor, value in zip(tensors, values, strict=True):
        assert torch.equal(tensor.cpu().view(torch.uint8), value.view(torch.uint8))
