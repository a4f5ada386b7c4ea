"""The directory of a model says which engine runs it; both engines hear the same words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from antiphon_core.errors import FailedPrecondition
from antiphon_vocoder.recognition.messages import DecodeOptions
from antiphon_vocoder.recognition.whisper.opening import (
    EngineOptions,
    open_recognizer,
    packaged_model,
)
from antiphon_vocoder.recognition.whisper.recognizer import WhisperRecognizer

from bench.whisper_checkpoints import converted_checkpoint, random_checkpoint
from tests.unit.recognition.piper_speech import SENTENCES, silence, speak


@pytest.fixture(scope="module")
def recognizers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[WhisperRecognizer, WhisperRecognizer]]:
    """The packaged model on CTranslate2, and the same weights on torch."""
    opened = (
        open_recognizer(packaged_model(), EngineOptions(compute_type="float32")),
        open_recognizer(converted_checkpoint(tmp_path_factory.mktemp("tiny"))),
    )
    yield opened
    for recognizer in opened:
        recognizer.close()


def test_both_engines_hear_the_same(
    recognizers: tuple[WhisperRecognizer, WhisperRecognizer],
) -> None:
    ctranslate, torch = recognizers
    assert (ctranslate.lanes, torch.lanes) == (1, 8)
    assert torch.info == ctranslate.info
    options = DecodeOptions(words=True, logprobs=True, prompt="A window.")
    audio = speak(SENTENCES[1])
    heard = [one.transcribe(audio, options, timestamps=True) for one in recognizers]
    (theirs,), (ours,) = (transcript.segments for transcript in heard)
    assert ours.text == theirs.text and ours.token_ids == theirs.token_ids
    assert heard[1].confidence == pytest.approx(heard[0].confidence, abs=0.02)
    assert heard[1].no_speech == ours.no_speech_probability < 0.3
    for segment in (theirs, ours):
        assert b"".join(token.text for token in segment.tokens).decode() == segment.text
        assert all(token.logprob <= 0 for token in segment.tokens)
    assert ours.average_logprob == pytest.approx(theirs.average_logprob, abs=0.02)
    assert ours.no_speech_probability == pytest.approx(theirs.no_speech_probability, abs=0.01)
    assert [word.text for word in ours.words] == [word.text for word in theirs.words]
    for mine, other in zip(ours.words, theirs.words, strict=True):
        assert abs(mine.start_ms - other.start_ms) <= 60
        assert mine.probability == pytest.approx(other.probability, abs=0.1)


@pytest.mark.slow
def test_silence_has_no_text_on_torch(
    recognizers: tuple[WhisperRecognizer, WhisperRecognizer],
) -> None:
    transcript = recognizers[1].transcribe(silence(3), DecodeOptions())
    assert transcript.segments == [] and transcript.is_settled


@pytest.mark.slow
def test_a_draw_at_a_temperature_is_the_same_each_time(
    recognizers: tuple[WhisperRecognizer, WhisperRecognizer],
) -> None:
    options = DecodeOptions(temperature=1.0)
    first, second = (recognizers[1].transcribe(speak(SENTENCES[0]), options) for _ in range(2))
    assert first == second and first.segments[0].temperature == 1.0


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "generation_config.json", "preprocessor_config.json"]
)
def test_a_missing_file_is_named(small: Path, tmp_path: Path, name: str) -> None:
    directory = shutil.copytree(small, tmp_path / "copy")
    (directory / name).unlink()
    with pytest.raises(FailedPrecondition, match=f"transformers layout: it has no {name}"):
        open_recognizer(directory)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("config.json", {"model_type": "bart"}, "model_type is 'bart'"),
        ("preprocessor_config.json", {"hop_length": 80}, "hop_length is 80"),
        ("preprocessor_config.json", {"feature_size": 128}, "feature_size is 128"),
        ("generation_config.json", {"no_timestamps_token_id": 7}, "no_timestamps_token_id is 7"),
        ("generation_config.json", {"suppress_tokens": [99999]}, "suppress_tokens has 99999"),
        ("generation_config.json", {"alignment_heads": [[2, 0]]}, "alignment_heads has"),
    ],
)
def test_what_disagrees_is_refused(
    small: Path, tmp_path: Path, name: str, change: dict[str, object], problem: str
) -> None:
    directory = shutil.copytree(small, tmp_path / "copy")
    content = json.loads((directory / name).read_text()) | change
    (directory / name).write_text(json.dumps(content))
    with pytest.raises(FailedPrecondition, match=problem) as caught:
        open_recognizer(directory)
    assert caught.value.field == "recognition.model_dir"


def test_a_device_that_is_not_there_is_refused(small: Path) -> None:
    with pytest.raises(FailedPrecondition, match="runs on the processor"):
        open_recognizer(packaged_model(), EngineOptions(device="cuda"))
    with pytest.raises(FailedPrecondition, match="CUDA"):
        open_recognizer(small, EngineOptions(device="cuda:99"))
