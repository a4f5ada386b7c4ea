"""Checkpoints of both kinds give the weights and configuration that went in."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import torch
from antiphon_kernels.quant_linear import dequantise
from antiphon_nn.checkpoint import open_checkpoint
from antiphon_nn.errors import CheckpointError
from safetensors.torch import save_file

from .gguf_samples import hugging_face_weights, write_gguf

FAMILIES = ["llama", "qwen2", "qwen3", "gemma3"]


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_weights_come_back_under_their_hugging_face_names(tmp_path: Path, family: str) -> None:
    weights = hugging_face_weights(family)
    write_gguf(tmp_path / "model.gguf", family, weights)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    assert checkpoint.names() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(checkpoint.tensor(name), weight, rtol=0, atol=1e-6)
        if weight.dim() == 2:
            torch.testing.assert_close(dequantise(checkpoint.linear(name)), weight)
    checkpoint.check_coverage()


def test_quantised_rows_are_reordered_as_whole_rows(tmp_path: Path) -> None:
    weights = hugging_face_weights("llama")
    kind = gguf.GGMLQuantizationType.Q4_1
    write_gguf(tmp_path / "model.gguf", "llama", weights, kind)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    for name, weight in weights.items():
        if weight.dim() == 2:
            packed = checkpoint.linear(name)
            assert packed.kind == "Q4_1"
            expected = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind)
            assert torch.equal(dequantise(packed), torch.from_numpy(expected))


def test_configuration_is_translated(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "gemma3", hugging_face_weights("gemma3"))
    config = open_checkpoint(tmp_path / "m.gguf").config
    expected = {
        "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": 50,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_hidden_layers": 2,
        "max_position_embeddings": 256,
        "rope_theta": 50000.0,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 8,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 32,
        "layer_types": ["sliding_attention"] * 2,
        "eos_token_id": 7,
    }
    assert {key: config[key] for key in expected} == expected
    write_gguf(tmp_path / "q.gguf", "qwen2", hugging_face_weights("qwen2"))
    qwen = open_checkpoint(tmp_path / "q.gguf").config
    assert qwen["attention_bias"] is True and qwen["tie_word_embeddings"] is False


def test_an_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "bloom")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="'bloom', known are llama, qwen2, qwen3, gemma3"):
        open_checkpoint(tmp_path / "m.gguf")


def test_unread_and_missing_tensors_are_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", hugging_face_weights("llama"))
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match=r"has no tensor 'model\.layers\.9\.x'"):
        checkpoint.tensor("model.layers.9.x")
    with pytest.raises(CheckpointError, match="expected a matrix"):
        checkpoint.linear("model.norm.weight")
    with pytest.raises(CheckpointError, match=r"20 tensors have no place .*lm_head\.weight"):
        checkpoint.check_coverage()
    checkpoint.check_coverage([r"model\.layers\..*", r"lm_head\.weight", r"model\.embed.*"])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    weights = {name: w.bfloat16() for name, w in hugging_face_weights("qwen3").items()}
    names = sorted(weights)
    shards = {"model-1.safetensors": names[:9], "model-2.safetensors": names[9:]}
    for shard, held in shards.items():
        save_file({name: weights[name] for name in held}, tmp_path / shard)
    index = {name: shard for shard, held in shards.items() for name in held}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]}))
    return tmp_path


def test_sharded_safetensors_keep_their_dtype(directory: Path) -> None:
    checkpoint = open_checkpoint(directory)
    assert checkpoint.config["architectures"] == ["Qwen3ForCausalLM"]
    for name, weight in hugging_face_weights("qwen3").items():
        assert torch.equal(checkpoint.tensor(name), weight.bfloat16().float())
        if weight.dim() == 2:
            packed = checkpoint.linear(name)
            assert packed.kind == "BF16"
            assert torch.equal(dequantise(packed), weight.bfloat16().float())


def test_damaged_safetensors_are_refused(directory: Path) -> None:
    shard = directory / "model-2.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-10])
    with pytest.raises(CheckpointError, match=r"model-2\.safetensors: is no valid safetensors"):
        open_checkpoint(directory)
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"shards are missing: model-2\.safetensors"):
        open_checkpoint(directory)


def test_an_index_that_lies_is_refused(directory: Path) -> None:
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.ghost"] = "model-1.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"where they are not: model\.ghost"):
        open_checkpoint(directory)
    index["weight_map"]["model.ghost"] = "../elsewhere.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="names a file elsewhere"):
        open_checkpoint(directory)


def test_paths_that_are_no_checkpoint_say_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"does not exist; expected a \.gguf file or"):
        open_checkpoint(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    with pytest.raises(CheckpointError, match="quant_method is 'awq'"):
        open_checkpoint(tmp_path)
