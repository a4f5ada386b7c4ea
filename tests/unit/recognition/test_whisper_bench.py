"""The Whisper bench of a device on the host: what it measures, and its floors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from antiphon_vocoder.recognition.whisper_torch.weights import WhisperShape
from torch.utils.flop_counter import FlopCounterMode
from transformers import WhisperConfig, WhisperForConditionalGeneration

from bench import gpu_whisper
from bench.gpu_kernels import BYTES_PER_S, OPERATIONS_PER_S
from bench.spoken_clips import read_clips, write_clips

LAYERS = 3


@pytest.fixture(scope="module")
def oracle() -> WhisperForConditionalGeneration:
    """Turbo's sizes with fewer layers, without storage."""
    sizes = gpu_whisper.TURBO | {"encoder_layers": LAYERS, "decoder_layers": LAYERS}
    with torch.device("meta"):
        return WhisperForConditionalGeneration(WhisperConfig(**sizes)).half()


def shape(model: WhisperForConditionalGeneration) -> WhisperShape:
    config = model.config
    return WhisperShape(
        mel_bands=config.num_mel_bins,
        width=config.d_model,
        vocabulary=config.vocab_size,
        encoder_layers=config.encoder_layers,
        encoder_heads=config.encoder_attention_heads,
        encoder_inner=config.encoder_ffn_dim,
        decoder_layers=config.decoder_layers,
        decoder_heads=config.decoder_attention_heads,
        decoder_inner=config.decoder_ffn_dim,
        source_positions=config.max_source_positions,
        target_positions=config.max_target_positions,
        embedding_scale=1.0,
        median_width=7,
    )


def test_the_encoder_s_floor_is_its_products(oracle: WhisperForConditionalGeneration) -> None:
    features = torch.empty(1, 128, 3000, device="meta", dtype=torch.float16)
    with FlopCounterMode(display=False) as counted:
        oracle.get_encoder()(features)
    floor = gpu_whisper.encoder_floor(shape(oracle), 2)
    assert floor == pytest.approx(1e3 * counted.get_total_flops() / OPERATIONS_PER_S, rel=1e-6)


def test_a_step_s_floor_is_the_reading_of_weights_and_caches(
    oracle: WhisperForConditionalGeneration,
) -> None:
    weights = sum(
        parameter.nbytes
        for name, parameter in oracle.named_parameters()
        if "decoder" in name
        and parameter.dim() > 1
        and not name.endswith(("embed_positions.weight", *_OF_THE_AUDIO))
    )
    cache = LAYERS * 2 * 1280 * (1500 + 34) * 2
    for rows in (1, 64):
        floor = gpu_whisper.step_floor(shape(oracle), rows, 34, 2)
        assert floor == pytest.approx(1e3 * (weights + rows * cache) / BYTES_PER_S, rel=1e-6)


_OF_THE_AUDIO = ("encoder_attn.k_proj.weight", "encoder_attn.v_proj.weight")
"""Multiplied once, when the audio comes."""


def test_clips_come_back_from_a_file(tmp_path: Path) -> None:
    clips = [np.linspace(-1.0, 1.0, size, dtype=np.float32) for size in (3, 1000, 20)]
    write_clips(tmp_path / "clips.npz", clips)
    kept = read_clips(tmp_path / "clips.npz")
    for clip, copy in zip(clips, kept, strict=True):
        assert copy.dtype == np.float32 and np.abs(clip - copy).max() <= 0.5 / 32767 + 1e-7


@pytest.mark.slow
def test_both_sides_are_measured_and_a_failure_costs_only_its_own_figures(tmp_path: Path) -> None:
    command = "--device cpu --small --precision fp32 --lanes 1 2 --tokens 6 --repeats 1 --clips"
    options = gpu_whisper.parse([*command.split(), str(tmp_path / "none.npz")])
    raw = gpu_whisper.measure(options)
    assert list(raw["failures"]) == ["tiny"] and "none.npz" in raw["failures"]["tiny"]
    assert [(cell["model"], cell["lanes"]) for cell in raw["cells"]] == [("turbo", 1), ("turbo", 2)]
    for cell in raw["cells"]:
        assert cell["equal"] == 1.0
        assert 1 <= cell["ours"]["rows"] <= cell["peer"]["rows"] == cell["lanes"]
        assert min(cell["ours"].values()) > 0 and cell["peer"]["audio"] > 0
