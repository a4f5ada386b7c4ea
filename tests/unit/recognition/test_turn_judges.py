"""Judges of pauses: the smart-turn layout against transformers' features, and the own judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from antiphon_core.errors import FailedPrecondition
from antiphon_vocoder.recognition.turns import load_judge
from antiphon_vocoder.recognition.turns.phrase import PhraseJudge
from antiphon_vocoder.recognition.turns.prosody import ending
from antiphon_vocoder.recognition.turns.smart_turn import SmartTurnJudge
from onnx import TensorProto, helper

RATE = 16_000


def write_model(path: Path, *, frames: int = 800, squash: bool = True) -> Path:
    """sigmoid(mean of the last 100 frames' band 3 - mean of all), as (batch, 1)."""
    nodes = [
        helper.make_node("Slice", ["input_features", "from", "to", "axes"], ["newest"]),
        helper.make_node("ReduceMean", ["newest"], ["late"], axes=[1, 2], keepdims=0),
        helper.make_node("ReduceMean", ["input_features"], ["mean"], axes=[1, 2], keepdims=0),
        helper.make_node("Sub", ["late", "mean"], ["difference"]),
        helper.make_node("Sigmoid", ["difference"], ["squashed"]),
        helper.make_node("Mul", ["difference", "hundred"], ["wide"]),
        helper.make_node("Add", ["wide", "hundred"], ["raw"]),
        helper.make_node("Reshape", ["squashed" if squash else "raw", "shape"], ["logits"]),
    ]
    constants = {
        "from": np.array([3, frames - 100], np.int64),
        "to": np.array([4, frames], np.int64),
        "axes": np.array([1, 2], np.int64),
        "shape": np.array([-1, 1], np.int64),
        "hundred": np.array(100, np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "turn",
        [helper.make_tensor_value_info("input_features", TensorProto.FLOAT, ["n", 80, frames])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 1])],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize("seconds", [0.7, 7.99, 8.0, 11.3])
def test_features_are_those_of_whispers_extractor_over_eight_seconds(
    tmp_path: Path, seconds: float
) -> None:
    from transformers import WhisperFeatureExtractor

    audio = np.random.default_rng(3).normal(0.01, 0.2, int(seconds * RATE)).astype(np.float32)
    window = np.zeros(8 * RATE, np.float32)
    window[max(0, 8 * RATE - len(audio)) :] = audio[-8 * RATE :]
    expected = WhisperFeatureExtractor(chunk_length=8)(
        window, sampling_rate=RATE, return_tensors="np", do_normalize=True
    ).input_features[0]
    judge = SmartTurnJudge(write_model(tmp_path / "turn.onnx"))
    found = judge.features(audio)
    assert found.shape == (80, 800)
    assert np.abs(found - expected).max() < 1e-3
    difference = expected[3, -100:].mean() - expected.mean()
    probability = judge.probability(audio, None, "")
    assert probability == pytest.approx(1 / (1 + np.exp(-difference)), abs=1e-4)


def test_models_of_another_layout_are_refused_with_what_they_have(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"80, 700.*\(batch, 80, 800\)"):
        load_judge(write_model(tmp_path / "frames.onnx", frames=700))
    with pytest.raises(FailedPrecondition, match="no probability"):
        load_judge(write_model(tmp_path / "raw.onnx", squash=False))
    (tmp_path / "text.onnx").write_text("no model")
    for name in ("text.onnx", "missing.onnx"):
        with pytest.raises(FailedPrecondition, match="does not load"):
            load_judge(tmp_path / name)


def voice(pitch: np.ndarray, loudness: np.ndarray) -> np.ndarray:
    """Harmonics that follow a pitch (n,) in Hz at a loudness (n,)."""
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    wave = sum(np.sin(harmonic * phase) / harmonic for harmonic in range(1, 9))
    silent = np.zeros(RATE // 5)
    return np.concatenate([0.2 * wave * loudness, silent]).astype(np.float32)


@pytest.mark.parametrize("semitones", [-6.0, 0.0, 6.0])
def test_pitch_is_followed_to_the_end_of_the_voice(semitones: float) -> None:
    count = RATE * 3 // 2
    fall = np.clip((np.arange(count) - RATE) / (RATE / 2), 0, 1)
    found = ending(voice(150 * 2 ** (semitones * fall / 12), np.ones(count)))
    assert found.pitch_slope == pytest.approx(2 * semitones, abs=1.5)
    assert found.pitch_fall == pytest.approx(semitones, abs=1.5)


def test_loudness_that_dies_away_is_measured_and_silence_has_no_ending() -> None:
    count = RATE
    decibels = -40 * np.clip((np.arange(count) - count / 2) / (count / 2), 0, 1)
    found = ending(voice(np.full(count, 120.0), 10 ** (decibels / 20)))
    assert found.loudness_slope == pytest.approx(-80, abs=8)
    assert found.loudness_fall < -10
    quiet = ending(np.zeros(RATE, np.float32))
    assert (quiet.pitch_slope, quiet.loudness_slope) == (0.0, pytest.approx(0.0))
    assert ending(np.zeros(10, np.float32)).loudness_fall == 0.0


@pytest.mark.parametrize(
    ("finished", "unfinished"),
    [
        ("I would like a pizza.", "I would like a"),
        ("Can you help me?", "Can you help me with the"),
        ("I am leaving.", "I am leaving because"),
        ("We can go.", "If it rains tomorrow."),
        ("Yes.", "Yes, and"),
        ("My number is five.", "My number is..."),
    ],
)
def test_wording_that_asks_for_more_makes_an_end_less_likely(
    finished: str, unfinished: str
) -> None:
    count = RATE
    audio = voice(np.full(count, 120.0), np.ones(count))
    judge = PhraseJudge()
    likely = judge.probability(audio, finished, "en")
    assert judge.probability(audio, unfinished, "en") < 0.6 * likely


def test_other_languages_are_judged_by_punctuation_and_voice() -> None:
    audio = voice(np.full(RATE, 120.0), np.ones(RATE))
    judge = PhraseJudge()
    for language, text, comma in (
        ("de", "Das war in an.", "Das war,"),
        ("zh", "\u597d\u7684\u3002", "\u597d\u7684\uff0c"),
    ):
        assert judge.probability(audio, text, language) > judge.probability(audio, comma, language)
