"""Whisper in torch against transformers: features, encoder, decoder, what a checkpoint must be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from antiphon_nn.config_reader import UnsupportedConfig
from antiphon_nn.errors import CheckpointError
from antiphon_vocoder.recognition.whisper.features import RATE, LogMel
from antiphon_vocoder.recognition.whisper_torch.decoder import RowInput
from antiphon_vocoder.recognition.whisper_torch.model import WhisperModel
from safetensors.torch import load_file, save_file
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from bench.whisper_checkpoints import random_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> WhisperForConditionalGeneration:
    return WhisperForConditionalGeneration.from_pretrained(checkpoint).eval()


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> WhisperModel:
    return WhisperModel(checkpoint, device="cpu", storage="auto", threads=2, rows=4, places=3)


def chirp(seconds: float) -> np.ndarray:
    time = np.arange(int(seconds * RATE)) / RATE
    return (0.3 * np.sin(2 * np.pi * (200 * time + 150 * time**2))).astype(np.float32)


@pytest.mark.parametrize("bands", [80, 128])
@pytest.mark.parametrize("seconds", [0.5, 30.0])
def test_features_are_those_of_transformers(bands: int, seconds: float) -> None:
    audio = chirp(seconds) + np.random.default_rng(1).normal(0, 0.01, int(seconds * RATE))
    audio = audio.astype(np.float32)
    extractor = WhisperFeatureExtractor(feature_size=bands)
    expected = extractor(audio, sampling_rate=RATE, return_tensors="np").input_features[0]
    assert np.abs(LogMel(bands)(audio, 3000) - expected).max() < 2e-4


def test_the_encoder_and_the_decoder_are_those_of_transformers(
    model: WhisperModel, oracle: WhisperForConditionalGeneration
) -> None:
    features = torch.from_numpy(LogMel(80)(chirp(3), 3000))
    prompt = [50257, 50362, 11, 22, 33, 44, 55]
    with torch.inference_mode():
        expected = oracle.model.encoder(features[None]).last_hidden_state
        encoded = model.encoder(features)
        assert (encoded - expected[0]).abs().max() < 1e-4
        wanted = oracle(
            encoder_outputs=(expected,), decoder_input_ids=torch.tensor([prompt])
        ).logits[0]
        audio = model.decoder.place(0, encoded)
        whole = model.decoder.logits(model.decoder([RowInput(prompt, 0, 0, audio)]))
        assert (whole - wanted).abs().max() < 1e-3 * wanted.abs().max()
        # The same text in parts, beside another row that is at another position.
        model.decoder([RowInput(prompt[:2], 0, 1, audio)])
        parts = []
        for at, token in enumerate(prompt[2:], 2):
            rows = [RowInput([7] * (at + 1), 0, 2, audio), RowInput([token], at, 1, audio)]
            parts.append(model.decoder.logits(model.decoder(rows)[-1:]))
        assert torch.equal(torch.cat(parts), whole[2:])


def test_a_short_window_continues_with_silence(model: WhisperModel) -> None:
    with torch.inference_mode():
        short = model.encoder(torch.from_numpy(LogMel(80)(chirp(1), 320)))
        silence = model.encoder(torch.from_numpy(LogMel(80)(np.zeros(0, np.float32), 3000)))
        assert short.shape == (160, 64)
        spliced = model.decoder.place(0, torch.cat((short, silence[160:])))
        model.decoder.place_silence(silence)
        shared = model.decoder.place(1, short)
        assert len(set(shared.tolist()) & set(spliced.tolist())) == 0
        tokens = [50257, 50362, 5]
        rows = [RowInput(tokens, 0, 0, spliced), RowInput(tokens, 0, 1, shared)]
        first, second = model.decoder(rows).split(3)
        assert torch.equal(first, second)


def _changed(source: Path, target: Path, **config: object) -> Path:
    for name in source.iterdir():
        (target / name.name).write_bytes(name.read_bytes())
    described = json.loads((source / "config.json").read_text()) | config
    (target / "config.json").write_text(json.dumps(described))
    return target


def _open(directory: Path) -> WhisperModel:
    return WhisperModel(directory, device="cpu", storage="auto", threads=1, rows=1, places=1)


def test_a_checkpoint_must_have_exactly_its_tensors(checkpoint: Path, tmp_path: Path) -> None:
    copy = _changed(checkpoint, tmp_path)
    weights = load_file(checkpoint / "model.safetensors")
    name = "model.decoder.layers.1.encoder_attn.v_proj.bias"
    missing = {key: value for key, value in weights.items() if key != name}
    for wrong, problem in (
        (missing, f"has no tensor '{name}'"),
        (weights | {"model.extra": torch.zeros(1)}, "no place in the model: model.extra"),
        (weights | {name: torch.zeros(63)}, "expected .64,"),
    ):
        save_file(wrong, copy / "model.safetensors")
        with pytest.raises(CheckpointError, match=problem):
            _open(copy)


@pytest.mark.parametrize(
    "config", [{"activation_function": "relu"}, {"num_mel_bins": 40}, {"d_model": None}]
)
def test_what_is_not_served_is_refused(
    checkpoint: Path, tmp_path: Path, config: dict[str, object]
) -> None:
    with pytest.raises(UnsupportedConfig, match=next(iter(config))):
        _open(_changed(checkpoint, tmp_path, **config))


def test_a_key_that_nothing_reads_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="new_trick"):
        _open(_changed(checkpoint, tmp_path, new_trick=3))
