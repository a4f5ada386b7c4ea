"""Layers: fused linears, embeddings and rotary tables against transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from antiphon_kernels.quant_linear import dequantise, pack
from antiphon_nn.layers import (
    DenseEmbedding,
    DenseLinear,
    Embedding,
    Linear,
    RMSNorm,
    RotaryEmbedding,
    rope_settings,
)
from antiphon_nn.rotary import inverse_frequencies
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_parts_of_one_format_are_stacked_and_others_are_not() -> None:
    q, k, v = rand(64, 40), rand(32, 40, seed=1), rand(20, 40, seed=2).bfloat16()
    fused = Linear([pack(q), pack(k), pack(v)], [None, rand(32), None])
    assert [segment.shape[0] for segment in fused.segments] == [96, 20]
    assert fused.sizes == [64, 32, 20]
    x = rand(5, 40, seed=3)
    parts = fused(x).split(fused.sizes, dim=1)
    alone = [Linear([pack(q)]), Linear([pack(k)], [rand(32)]), Linear([pack(v)])]
    for part, linear in zip(parts, alone, strict=True):
        assert torch.equal(part, linear(x))


def test_packed_products_leave_the_residual_alone() -> None:
    residual = rand(3, 20)
    before = residual.clone()
    assert not Linear([pack(rand(20, 16))]).accumulate(rand(3, 16), residual)
    assert torch.equal(residual, before)


def test_parts_of_different_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="one input dimension"):
        Linear([pack(rand(32, 8)), pack(rand(32, 16))])


def test_embedding_shares_its_storage_with_the_head() -> None:
    weight = pack(rand(50, 16))
    embedding = Embedding(weight, scale=4.0)
    ids = torch.tensor([3, 49, 3], dtype=torch.int32)
    assert torch.equal(embedding(ids), dequantise(weight)[ids.long()] * 4.0)
    assert embedding.head().segments[0] is weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_drawn_tokens_stand_behind_negative_ids(dtype: torch.dtype) -> None:
    weight = rand(50, 16)
    drawn = torch.tensor([7, 49, 0], dtype=torch.int32)
    ids = torch.tensor([3, -2, -1, -3], dtype=torch.int32)
    known = torch.tensor([3, 49, 7, 0], dtype=torch.int32)
    if dtype == torch.float32:
        embedding: Embedding | DenseEmbedding = Embedding(pack(weight), 4.0)
    else:
        embedding = DenseEmbedding(weight.to(dtype), 4.0)
    assert torch.equal(embedding(ids, None, drawn), embedding(known))


@pytest.mark.parametrize("rows", [1, 16, 17, 40])
def test_dense_products_fold_their_neighbours(rows: int) -> None:
    weight, norm = rand(64, 32).bfloat16(), RMSNorm(rand(32, seed=1), 1e-6)
    linear = DenseLinear(weight, [32, 32])
    x = rand(rows, 32, seed=2).bfloat16()
    wide = norm(x.float()) @ weight.float().T
    assert linear.folds(rows) is (rows <= 16)
    close = {"atol": 0.06, "rtol": 0.02}
    torch.testing.assert_close(linear(norm(x)).float(), wide, **close)
    logits = linear(norm(x), torch.empty(rows, 64))
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, wide, **close)
    residual = rand(rows, 64, seed=3).bfloat16()
    total = residual.float() + x.float() @ weight.float().T
    assert linear.accumulate(x, residual)
    torch.testing.assert_close(residual.float(), total, atol=0.06, rtol=0.01)
    if linear.folds(rows):
        folded = linear.folded(x, torch.empty(rows, 64), norm=norm)
        torch.testing.assert_close(folded, wide, atol=1e-4, rtol=1e-4)
        gated = linear.folded(x, torch.empty(rows, 32), norm=norm, activation="silu")
        expected = torch.nn.functional.silu(wide[:, :32]) * wide[:, 32:]
        torch.testing.assert_close(gated, expected, atol=1e-3, rtol=1e-3)


def test_norm_with_the_residual() -> None:
    norm = RMSNorm(rand(16), 1e-6, plus_one=True)
    x, residual = rand(3, 16, seed=1), rand(3, 16, seed=2)
    normed, total = norm.add(x, residual)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, norm(total))


SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
        "beta_fast": 16.0,
        "truncate": False,
    },
}


@pytest.mark.parametrize("name", list(SCALINGS))
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_frequencies_equal_transformers(name: str, spelling: str) -> None:
    scaling = SCALINGS[name]
    parameters = {"rope_type": "default"} | scaling | {"rope_theta": 50000.0}
    oracle = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters=dict(parameters),
    )
    config: dict[str, Any] = {
        "hidden_size": 256,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
    }
    if spelling == "rope_parameters":
        config["rope_parameters"] = parameters
    else:
        config |= {"rope_theta": 50000.0, "rope_scaling": scaling or None}
    frequencies, factor = inverse_frequencies(rope_settings(config))
    if name == "default":
        expected = 1.0 / (50000.0 ** (torch.arange(0, 64, 2).float() / 64))
        expected_factor = 1.0
    else:
        kind = scaling["rope_type"]
        expected, expected_factor = ROPE_INIT_FUNCTIONS[kind](oracle, torch.device("cpu"))
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor)


def test_gemma3_layer_types_have_their_own_base() -> None:
    config = {
        "head_dim": 32,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    local = rope_settings(config, "sliding_attention")
    assert (local.kind, local.theta) == ("default", 1e4)
    world = rope_settings(config, "full_attention")
    assert (world.kind, world.theta) == ("linear", 1e6)
    nested = {
        "head_dim": 32,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
    }
    assert rope_settings(nested, "sliding_attention") == local
    assert rope_settings(nested, "full_attention") == world
    with pytest.raises(ValueError, match="no layer type 'other', only sliding_attention"):
        rope_settings(nested, "other")


def test_unsupported_scaling_is_refused_by_name() -> None:
    config = {"head_dim": 32, "rope_scaling": {"rope_type": "longrope"}}
    with pytest.raises(ValueError, match="rope_type is 'longrope', supported are default, linear"):
        rope_settings(config)
    config = {"head_dim": 32, "rope_scaling": {"type": "linear"}}
    with pytest.raises(ValueError, match="needs the key factor"):
        rope_settings(config)


def test_rotation_follows_the_tables() -> None:
    rotary = RotaryEmbedding(rope_settings({"head_dim": 16}), 12)
    q, k = rand(3, 2, 16), rand(3, 1, 16, seed=1)
    start = q.clone()
    rotary(q, k, torch.tensor([0, 5, 11], dtype=torch.int32))
    assert torch.equal(q[0], start[0])
    torch.testing.assert_close(q.norm(dim=-1), start.norm(dim=-1))
