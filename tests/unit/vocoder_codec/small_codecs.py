"""Small codecs with random weights, written as their libraries write them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    DacConfig,
    DacModel,
    EncodecConfig,
    EncodecModel,
    MimiConfig,
    MimiModel,
)

RVQ_VAE: dict[str, Any] = {
    "model_type": "rvq_vae",
    "sampling_rate": 22050,
    "latent_size": 12,
    "n_fft": 16,
    "hop_length": 4,
    "base_hidden_size": 6,
    "channel_mult": [1, 2, 4],
    "rates": [3, 2, 5],
    "num_blocks": 3,
    "kernel_size": 7,
    "groups": 1,
    "codebook_size": 32,
    "num_quantizers": 4,
    "wav_to_token_ratio": 120,
}
CONTROL, SILENCE = [32, 33, 35], [3, 1, 4, 1]


def write_mimi(directory: Path) -> None:
    """A Mimi whose layers and codebooks all matter; a window of 13 positions, not 250."""
    config = MimiConfig(
        hidden_size=32,
        num_filters=4,
        num_hidden_layers=2,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=4,
        codebook_size=64,
        codebook_dim=16,
        vector_quantization_hidden_dimension=16,
        num_quantizers=5,
        upsample_groups=32,
        upsampling_ratios=[5, 4, 3, 2],
        sampling_rate=3000,
        sliding_window=13,
    )
    MimiModel(config).save_pretrained(directory)
    _redraw(directory, _mimi_tensor)


def _mimi_tensor(name: str, tensor: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    if name.endswith("embed_sum"):
        return torch.randn(tensor.shape, generator=draw)
    if name.endswith("cluster_usage"):
        return torch.rand(tensor.shape, generator=draw) * 2
    if name.endswith("scale"):
        return torch.rand(tensor.shape, generator=draw) * 0.5
    if name.endswith("layernorm.weight"):
        return 1 + 0.2 * torch.randn(tensor.shape, generator=draw)
    if name.endswith("conv.weight"):
        # transformers' initial weights make samples of 100 and more.
        return tensor * 0.6
    return tensor


def write_encodec(directory: Path) -> None:
    """An EnCodec of 24 kHz's layout."""
    config = EncodecConfig(
        hidden_size=12,
        num_filters=3,
        codebook_size=32,
        upsampling_ratios=[4, 3, 2],
        sampling_rate=1800,
        target_bandwidths=[0.375, 1.5],
    )
    EncodecModel(config).save_pretrained(directory)
    _redraw(directory, _encodec_tensor)


def write_encodec_chunked(directory: Path) -> None:
    """An EnCodec of 48 kHz's layout, with chunks of 20 frames."""
    config = EncodecConfig(
        hidden_size=12,
        num_filters=4,
        codebook_size=32,
        upsampling_ratios=[4, 3, 2],
        sampling_rate=2400,
        target_bandwidths=[0.5, 2.0],
        audio_channels=2,
        normalize=True,
        chunk_length_s=0.2,
        overlap=0.05,
        norm_type="time_group_norm",
        use_causal_conv=False,
    )
    EncodecModel(config).save_pretrained(directory)
    _redraw(directory, _encodec_tensor)


def _encodec_tensor(name: str, tensor: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    if name.endswith(("embed", "embed_avg")):
        return torch.randn(tensor.shape, generator=draw)
    if name.endswith("norm.weight"):
        return 1 + 0.2 * torch.randn(tensor.shape, generator=draw)
    if name.endswith("original0"):
        return tensor * (1 + 0.2 * torch.rand(tensor.shape, generator=draw))
    return tensor


def write_dac(directory: Path) -> None:
    """A DAC with an odd ratio, as at 24 kHz, whose layers trail by 10 frames."""
    config = DacConfig(
        encoder_hidden_size=6,
        downsampling_ratios=[3, 8],
        decoder_hidden_size=16,
        n_codebooks=4,
        codebook_size=32,
        codebook_dim=5,
        sampling_rate=1800,
    )
    DacModel(config).save_pretrained(directory)
    _redraw(directory, _dac_tensor)


def _dac_tensor(name: str, tensor: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    if name.endswith("alpha"):
        return 0.3 + torch.rand(tensor.shape, generator=draw)
    if name.endswith("bias"):
        # Zeros to the left of a clip are told from what a bias makes of them.
        return 0.3 * torch.randn(tensor.shape, generator=draw)
    if name.endswith("codebook.weight"):
        return torch.randn(tensor.shape, generator=draw)
    fan = tensor[0].numel() if "conv_t1" not in name else tensor.shape[0] * 2
    gain = 0.4 if ".res_unit" in name or name == "decoder.conv2.weight" else 1.0
    return torch.randn(tensor.shape, generator=draw) * gain * fan**-0.5


def write_rvq_vae(directory: Path) -> None:
    """The RVQ-VAE's layout with its control codes."""
    draw = torch.Generator().manual_seed(1)
    config = RVQ_VAE

    def random(*shape: int, fan: int = 1) -> torch.Tensor:
        return torch.randn(*shape, generator=draw) * fan**-0.5

    tensors: dict[str, torch.Tensor] = {}

    def blocks(side: str, first: int, width: int) -> None:
        for index in range(first, first + config["num_blocks"]):
            name, inner = f"{side}.layers.{index}", 4 * width
            for part, shape, fan in (
                ("dwconv", (width, 1, config["kernel_size"]), config["kernel_size"]),
                ("pwconv1", (inner, width, 1), width),
                ("pwconv2", (width, inner, 1), inner),
            ):
                tensors[f"{name}.{part}.weight"] = random(*shape, fan=fan)
                tensors[f"{name}.{part}.bias"] = random(shape[0]) * 0.1
            tensors[f"{name}.norm.weight"] = 1 + 0.2 * random(width)
            tensors[f"{name}.norm.bias"] = random(width) * 0.1

    widths = [config["base_hidden_size"] * factor for factor in config["channel_mult"]]
    rates, latent, stage = config["rates"], config["latent_size"], config["num_blocks"] + 1
    inputs = config["n_fft"] + 2
    for number, (width, rate) in enumerate(zip([*widths, latent], [1, *rates], strict=True)):
        name = f"encoder.layers.{number * stage}"
        tensors[f"{name}.weight"] = random(width, inputs, rate, fan=inputs * rate)
        if number < len(widths):
            blocks("encoder", number * stage + 1, width)
        inputs = width
    inputs = latent
    for number, (width, rate) in enumerate(zip(widths[::-1], rates[::-1], strict=True)):
        tensors[f"decoder.layers.{number * stage}.weight"] = random(inputs, width, rate, fan=inputs)
        blocks("decoder", number * stage + 1, width)
        inputs = width
    last = random(config["n_fft"] + 2, inputs, 1) * 0.15
    tensors[f"decoder.layers.{len(widths) * stage}.weight"] = last
    for level in range(config["num_quantizers"]):
        tensors[f"prvq.mus_list.{level}"] = random(config["codebook_size"], latent)
        tensors[f"prvq._variance_list.{level}.variance"] = torch.tensor(1.0)
    tensors["_control_codes"] = torch.tensor(CONTROL)
    tensors["codec_silence_tokens"] = torch.tensor(SILENCE)
    assert math.prod(rates) * config["hop_length"] == config["wav_to_token_ratio"]
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))


def _redraw(
    directory: Path, change: Callable[[str, torch.Tensor, torch.Generator], torch.Tensor]
) -> None:
    path = directory / "model.safetensors"
    draw = torch.Generator().manual_seed(0)
    tensors = load_file(path)
    changed = {name: change(name, tensors[name], draw).contiguous() for name in sorted(tensors)}
    save_file(changed, path, {"format": "pt"})


WRITERS: dict[str, Callable[[Path], None]] = {
    "dac": write_dac,
    "mimi": write_mimi,
    "encodec": write_encodec,
    "encodec_chunked": write_encodec_chunked,
    "rvq_vae": write_rvq_vae,
}
