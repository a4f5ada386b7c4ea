"""The resolver: exact, or refused with what there is."""

from __future__ import annotations

import pytest
from antiphon_core.errors import InvalidArgument, NotFound
from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.domain.recognition import Recognizer
from antiphon_gateway.domain.speech import Voice
from antiphon_gateway.names import (
    resolve_model,
    resolve_recognizer,
    resolve_speech_model,
    resolve_voice,
)


def model(name: str, base: str = "", aliases: tuple[str, ...] = ()) -> ModelInfo:
    return ModelInfo(name, 10, (), (), True, base_model=base, aliases=aliases)


MODELS = [
    model("org/alpha", aliases=("first",)),
    model("org/beta"),
    model("other/beta"),
    model("poet", base="org/alpha"),
]
VOICES = [Voice("joe", "Joe", "preset", ("piper",), "en", 22_050, 0, aliases=("joseph",))]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("org/alpha", "org/alpha"),
        ("first", "org/alpha"),
        ("alpha", "org/alpha"),
        ("poet", "poet"),
        ("org/alpha:poet", "poet"),
        ("", "org/alpha"),
        ("default", "org/alpha"),
    ],
)
def test_names_that_resolve(name: str, found: str) -> None:
    assert resolve_model(name, MODELS).id == found


@pytest.mark.parametrize("name", ["beta", "Alpha", "org", "org/beta:poet", "alph", "org/alpha "])
def test_names_that_do_not(name: str) -> None:
    with pytest.raises(NotFound) as error:
        resolve_model(name, MODELS)
    assert error.value.reason == "MODEL_NOT_FOUND"
    assert "org/alpha" in error.value.message


def test_configured_default() -> None:
    assert resolve_model("default", MODELS, "org/beta").id == "org/beta"


def test_voices() -> None:
    aliases = {"alloy": "", "nova": "joe"}
    assert resolve_voice("joseph", VOICES, aliases) == "joe"
    assert resolve_voice("alloy", VOICES, aliases) == ""
    assert resolve_voice("nova", VOICES, aliases) == "joe"
    with pytest.raises(InvalidArgument, match="joe") as error:
        resolve_voice("zoe", VOICES, aliases)
    assert error.value.reason == "VOICE_NOT_FOUND"


def test_speech_models_and_recognizers() -> None:
    assert resolve_speech_model("piper", VOICES, {}) == "piper"
    assert resolve_speech_model("tts-1", VOICES, {"tts-1": ""}) == ""
    recognizers = [Recognizer("whisper-tiny", (), True)]
    assert resolve_recognizer("whisper-1", recognizers, {"whisper-1": ""}) == ""
    for resolve, served in ((resolve_speech_model, VOICES), (resolve_recognizer, recognizers)):
        with pytest.raises(NotFound):
            resolve("gpt-9", served, {})
