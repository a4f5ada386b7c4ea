"""Checkpoints that differ from what a codec needs are refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from antiphon_nn.errors import CheckpointError
from antiphon_vocoder.codec.registry import load
from safetensors.torch import load_file, save_file

Checkpoint = Callable[[str], Path]

A_TENSOR = {
    "mimi": "decoder.layers.2.conv.weight",
    "encodec": "decoder.layers.3.conv.parametrizations.weight.original1",
    "encodec_chunked": "decoder.layers.4.block.1.conv.weight",
    "rvq_vae": "decoder.layers.5.pwconv1.weight",
    "dac": "decoder.block.1.res_unit2.conv1.weight",
}


@pytest.fixture
def copy(checkpoint: Checkpoint, tmp_path: Path) -> Callable[[str], Path]:
    """A codec's directory that a test may spoil."""

    def get(kind: str) -> Path:
        return Path(shutil.copytree(checkpoint(kind), tmp_path / kind))

    return get


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def change_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("kind", A_TENSOR)
def test_a_missing_tensor_is_named(copy: Callable[[str], Path], kind: str) -> None:
    directory = copy(kind)
    change_tensors(directory, lambda tensors: tensors.pop(A_TENSOR[kind]))
    with pytest.raises(CheckpointError, match=r"has no tensor 'decoder\.(layers|block)"):
        load(directory)


@pytest.mark.parametrize("kind", A_TENSOR)
def test_an_extra_tensor_is_named(copy: Callable[[str], Path], kind: str) -> None:
    directory = copy(kind)
    change_tensors(directory, lambda tensors: tensors.update({"stray.bias": torch.zeros(3)}))
    with pytest.raises(CheckpointError, match=r"no place in the model: stray\.bias"):
        load(directory)


@pytest.mark.parametrize("kind", A_TENSOR)
def test_a_misshapen_tensor_is_named(copy: Callable[[str], Path], kind: str) -> None:
    directory = copy(kind)
    name = A_TENSOR[kind]
    change_tensors(directory, lambda t: t.update({name: t[name][1:].contiguous()}))
    with pytest.raises(CheckpointError, match=f"{name!r} has shape .* expected"):
        load(directory)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("mimi", {"use_causal_conv": False}, "use_causal_conv is False; supported: True"),
        ("mimi", {"hidden_act": "relu"}, "hidden_act is 'relu'; supported: 'gelu'"),
        ("mimi", {"frame_rate": 50.0}, "frame_rate is 50.0; supported: 12.5"),
        ("mimi", {"num_key_value_heads": 2}, "num_key_value_heads is 2; supported: 4"),
        ("mimi", {"quantum_flux": 3}, "not implemented: quantum_flux"),
        ("encodec", {"normalize": True}, "normalize is True; supported: False"),
        ("encodec", {"norm_type": "layer_norm"}, "norm_type is 'layer_norm'; supported: 'weight"),
        ("encodec", {"norm_type": "time_group_norm"}, "use_causal_conv is True; supported: False"),
        ("encodec_chunked", {"normalize": False}, "normalize is False; supported: True"),
        ("encodec_chunked", {"chunk_length_s": None}, "config has no 'chunk_length_s'"),
        ("encodec_chunked", {"chunk_length_s": 0.201}, "a chunk of 482 samples .* multiple of 24"),
        ("dac", {"hop_length": 48}, "hop_length is 48; supported: 24"),
        ("dac", {"upsampling_ratios": [3, 8]}, r"upsampling_ratios is \[3, 8\]; supported"),
        ("dac", {"decoder_hidden_size": 18}, "decoder_hidden_size is 18, expected a multiple of 4"),
        ("dac", {"snake_logscale": True}, "not implemented: snake_logscale"),
        ("rvq_vae", {"groups": 2}, "groups is 2; supported: 1"),
        ("rvq_vae", {"wav_to_token_ratio": 100}, "wav_to_token_ratio is 100; supported: 120"),
        ("rvq_vae", {"model_type": "opus"}, "model_type is 'opus'; supported: .*'mimi'"),
    ],
)
def test_a_configuration_that_is_not_served_is_refused(
    copy: Callable[[str], Path], kind: str, changes: dict[str, Any], message: str
) -> None:
    directory = copy(kind)
    change_config(directory, **changes)
    with pytest.raises(CheckpointError, match=message):
        load(directory)


def test_an_older_weight_norm_is_read(copy: Callable[[str], Path], checkpoint: Checkpoint) -> None:
    directory = copy("encodec")

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            for new, old in (("original0", "weight_g"), ("original1", "weight_v")):
                if name.endswith(new):
                    tensors[name.replace(f"parametrizations.weight.{new}", old)] = tensors.pop(name)

    change_tensors(directory, rename)
    codes = torch.arange(8).view(1, 1, 8)
    assert torch.equal(load(directory).decode(codes), load(checkpoint("encodec")).decode(codes))


def test_half_precision_is_near_and_keeps_its_state_small(checkpoint: Checkpoint) -> None:
    exact, half = load(checkpoint("mimi")), load(checkpoint("mimi"), precision="bf16")
    codes = torch.arange(60).view(1, 5, 12) % 64
    want = exact.decode(codes)
    error = (half.decode(codes) - want).square().sum() / want.square().sum()
    assert 0 < error < 1e-3
    assert half.decoder_state(2, 1).nbytes < 0.6 * exact.decoder_state(2, 1).nbytes
    with pytest.raises(ValueError, match="precision is 'int4'; supported: fp32, tf32, bf16x3"):
        load(checkpoint("mimi"), precision="int4")  # type: ignore[arg-type]
