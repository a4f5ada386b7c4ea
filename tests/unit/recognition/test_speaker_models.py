"""Embeddings of voices: the packaged model against upstream and float64, and exported ones."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
from antiphon_core.errors import FailedPrecondition
from antiphon_vocoder.recognition.speakers.checkpoint import UnreadableCheckpoint, read_tensors
from antiphon_vocoder.recognition.speakers.embedder import RATE, VoiceUnheard
from antiphon_vocoder.recognition.speakers.exported import ExportedEmbedder
from antiphon_vocoder.recognition.speakers.fbank import BANDS, Fbank
from antiphon_vocoder.recognition.speakers.ge2e import Ge2eEmbedder
from antiphon_vocoder.recognition.speakers.packaged import packaged_model
from onnx import TensorProto, helper, numpy_helper

UPSTREAM_STEP = 77
UPSTREAM = {
    42: 0.330503,
    120: 0.159269,
    128: 0.172464,
    146: 0.154174,
    150: 0.221380,
    168: 0.154978,
    199: 0.166389,
    235: 0.164981,
    246: 0.189349,
    248: 0.177251,
}
"""Largest of resemblyzer 0.1.4's numbers for ``hum``, after its normalize_volume."""

METADATA = {
    "framework": "3d-speaker",
    "sample_rate": "16000",
    "normalize_samples": "1",
    "feature_normalize_type": "global-mean",
    "output_dim": "24",
}


def hum(seconds: float = 2.5) -> np.ndarray:
    """A quiet voice-like sound: harmonics of a moving pitch round one formant."""
    time = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 25 * np.sin(2 * np.pi * 1.5 * time)) / RATE
    wave = sum(np.sin(k * phase) * np.exp(-(((k * 120 - 600) / 500) ** 2)) for k in range(1, 25))
    wave = wave * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time))
    return (0.02 * wave / np.abs(wave).max()).astype(np.float32)


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    path = packaged_model()
    assert path is not None
    return path


@pytest.fixture(scope="module")
def packaged(checkpoint: Path) -> Ge2eEmbedder:
    return Ge2eEmbedder(checkpoint)


def test_the_packaged_model_answers_as_upstream(checkpoint: Path) -> None:
    found = Ge2eEmbedder(checkpoint, step=UPSTREAM_STEP).embed(hum())
    assert found.shape == (256,)
    assert np.linalg.norm(found) == pytest.approx(1, abs=1e-5)
    assert sorted(np.argsort(-found)[: len(UPSTREAM)]) == list(UPSTREAM)
    for place, value in UPSTREAM.items():
        assert found[place] == pytest.approx(value, abs=2e-5)


def test_mel_and_network_are_those_of_float64(checkpoint: Path, packaged: Ge2eEmbedder) -> None:
    audio = hum(1.6)
    level = np.sqrt(np.mean(np.square(audio, dtype=np.float64)))
    loud = np.float64(audio) * 10 ** (-30 / 20) / level
    mel = float64_mel(loud)
    assert np.abs(packaged.mel(loud.astype(np.float32)) - mel).max() < 1e-5 * mel.max()
    found = read_tensors(checkpoint, "model_state")
    tensors = {name: value.astype(np.float64) for name, value in found.items()}
    expected = float64_network(tensors, mel[:160])
    assert expected @ packaged.embed(audio) > 1 - 1e-6


def float64_mel(samples: np.ndarray) -> np.ndarray:
    """Power in 40 Slaney bands; the scale is written out by its two rules, band by band."""
    padded = np.pad(samples, 200)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    starts = range(0, len(samples) + 1, 160)
    power = [np.abs(np.fft.rfft(padded[start : start + 400] * window)) ** 2 for start in starts]
    top = 15 + 27 * np.log(8000 / 1000) / np.log(6.4)
    edges = [
        mel * 200 / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)
        for mel in np.linspace(0, top, 42)
    ]
    bins = np.arange(201) * 40.0
    bands = [
        np.interp(bins, edges[band : band + 3], [0, 1, 0]) * 2 / (edges[band + 2] - edges[band])
        for band in range(40)
    ]
    return np.array(power) @ np.array(bands).T


def float64_network(tensors: dict[str, np.ndarray], mel: np.ndarray) -> np.ndarray:
    """Three LSTM layers, then projection, ReLU and length 1, of mel (160, 40)."""
    values = mel
    for layer in range(3):
        weights, back = (tensors[f"lstm.weight_{kind}_l{layer}"] for kind in ("ih", "hh"))
        bias = tensors[f"lstm.bias_ih_l{layer}"] + tensors[f"lstm.bias_hh_l{layer}"]
        state = cell = np.zeros(256)
        states = []
        for value in values:
            into, forget, new, out = np.split(weights @ value + back @ state + bias, 4)
            cell = sigmoid(forget) * cell + sigmoid(into) * np.tanh(new)
            state = sigmoid(out) * np.tanh(cell)
            states.append(state)
        values = states
    raw = np.maximum(tensors["linear.weight"] @ values[-1] + tensors["linear.bias"], 0)
    return raw / np.linalg.norm(raw)


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def test_short_audio_is_heard_and_silence_is_not(packaged: Ge2eEmbedder) -> None:
    whole = packaged.embed(hum(3.0))
    assert packaged.embed(hum(0.6)) @ whole > 0.8
    for nothing in (np.zeros(RATE, np.float32), np.zeros(0, np.float32)):
        with pytest.raises(VoiceUnheard):
            packaged.embed(nothing)


class Forbidden:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("run",)


@pytest.mark.parametrize("content", [Forbidden(), {"model_state": {}}, 7])
def test_a_checkpoint_of_another_kind_is_refused(
    tmp_path: Path, content: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pt"
    magic = 0x1950A86A20F9469CFC6C
    path.write_bytes(b"".join(pickle.dumps(part, 2) for part in (magic, 1001, {}, content, [])))
    with pytest.raises(FailedPrecondition, match="does not load") as caught:
        Ge2eEmbedder(path)
    assert caught.value.reason == "SPEAKER_MODEL_MISSING"
    for other in (b"PK\x03\x04 a zip file", pickle.dumps(Forbidden(), 2)):
        path.write_bytes(other)
        with pytest.raises(UnreadableCheckpoint):
            read_tensors(path, "model_state")
    assert capsys.readouterr().out == ""


def float64_fbank(audio: np.ndarray) -> np.ndarray:
    """Kaldi's log-mel features (frames, 80), from the formulas of its documentation."""
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85
    frames = np.lib.stride_tricks.sliding_window_view(np.float64(audio), 400)[::160]
    frames = frames - frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    power = np.abs(np.fft.rfft((frames - 0.97 * before) * window, 512)) ** 2
    mel = 1127 * np.log(1 + np.arange(256) * RATE / 512 / 700)
    edges = np.linspace(1127 * np.log(1 + 20 / 700), 1127 * np.log(1 + 8000 / 700), BANDS + 2)
    bands = [np.interp(mel, edges[k : k + 3], [0, 1, 0], left=0, right=0) for k in range(BANDS)]
    return np.log(np.maximum(power[:, :256] @ np.array(bands).T, np.finfo(np.float32).eps))


@pytest.mark.parametrize("normalized", [True, False])
def test_features_are_kaldis(normalized: bool) -> None:
    audio = hum(0.5) + np.random.default_rng(0).normal(0, 0.01, RATE // 2).astype(np.float32)
    expected = float64_fbank(audio * (1 if normalized else 32768))
    found = Fbank(window="povey", normalized=normalized, remove_mean=False)(audio)
    assert found.shape == expected.shape == (48, BANDS)
    assert np.abs(found - expected).max() < 2e-3
    without = Fbank(window="povey", normalized=normalized, remove_mean=True)(audio)
    assert np.abs(without - (expected - expected.mean(axis=0))).max() < 2e-3
    assert len(Fbank(window="povey", normalized=True, remove_mean=True)(audio[:399])) == 0


def write_model(
    path: Path, metadata: dict[str, str], bands: int = BANDS, shape: list | None = None
) -> Path:
    """A random export: the mean of tanh of a projection over time, (1, T, bands) to (1, 24)."""
    weights = np.random.default_rng(1).normal(0, 0.3, (bands, 24)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Tanh", ["p"], ["t"]),
        helper.make_node("ReduceMean", ["t"], ["embedding"], axes=[1], keepdims=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape or [1, "T", bands])
    out = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [1, 24])
    graph = helper.make_graph(nodes, "g", [x], [out], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


def test_an_exported_model_hears_the_features_that_its_metadata_ask_for(tmp_path: Path) -> None:
    audio = hum(1.0)
    path = write_model(tmp_path / "model.onnx", METADATA)
    weights = numpy_helper.to_array(onnx.load(path).graph.initializer[0])
    features = float64_fbank(audio)
    features -= features.mean(axis=0)
    raw = np.tanh(features @ weights).mean(axis=0)
    found = ExportedEmbedder(path).embed(audio)
    assert found @ (raw / np.linalg.norm(raw)) > 1 - 1e-5
    plain = METADATA | {"feature_normalize_type": "", "normalize_samples": "0"}
    kept = ExportedEmbedder(write_model(tmp_path / "kept.onnx", plain)).embed(audio)
    raw = np.tanh(float64_fbank(audio * 32768) @ weights).mean(axis=0)
    assert kept @ (raw / np.linalg.norm(raw)) > 1 - 1e-5


def test_wespeakers_exports_have_a_hamming_window_and_no_mean(tmp_path: Path) -> None:
    metadata = METADATA | {"framework": "wespeaker", "feature_normalize_type": ""}
    embedder = ExportedEmbedder(write_model(tmp_path / "model.onnx", metadata))
    features = Fbank(window="hamming", normalized=True, remove_mean=True)(hum(1.0))
    weights = numpy_helper.to_array(onnx.load(tmp_path / "model.onnx").graph.initializer[0])
    raw = np.tanh(features @ weights).mean(axis=0)
    assert embedder.embed(hum(1.0)) @ (raw / np.linalg.norm(raw)) > 1 - 1e-5


@pytest.mark.parametrize(
    ("metadata", "options", "problem"),
    [
        ({"framework": "nemo"}, {}, "framework 'nemo'.*3d-speaker"),
        ({"sample_rate": "8000"}, {}, "sample_rate '8000'.*16000"),
        ({"normalize_samples": ""}, {}, "normalize_samples ''"),
        ({"feature_normalize_type": "per_feature"}, {}, "per_feature"),
        ({"output_dim": "192"}, {}, "output_dim '192' and answers 24"),
        ({}, {"bands": 40}, r"takes x \[1, 'T', 40\].*\(1, frames, 80\)"),
        ({}, {"shape": ["T", BANDS]}, r"takes x \['T', 80\]"),
        ({}, {"shape": [1, 200, BANDS]}, "exactly 200 frames"),
    ],
)
def test_a_model_of_another_layout_is_refused_with_what_it_has(
    tmp_path: Path, metadata: dict[str, str], options: dict, problem: str
) -> None:
    path = write_model(tmp_path / "model.onnx", METADATA | metadata, **options)
    with pytest.raises(FailedPrecondition, match=problem) as caught:
        ExportedEmbedder(path)
    assert caught.value.field == "recognition.speaker_model"


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    for name in ("text.onnx", "missing.onnx"):
        with pytest.raises(FailedPrecondition, match="does not load"):
            ExportedEmbedder(tmp_path / name)
