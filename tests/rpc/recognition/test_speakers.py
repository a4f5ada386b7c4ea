"""Who speaks, and keywords, through the real worker: live, on a shared call, and in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core.errors import AntiphonError, FailedPrecondition, InvalidArgument
from antiphon_vocoder.recognition.config import RecognitionSettings
from antiphon_vocoder.recognition.convert import file_request, stream_options
from antiphon_vocoder.recognition.messages import RecognizerInfo

from tests.rpc.recognition.conftest import RecognitionServer
from tests.rpc.recognition.live import (
    audio_requests,
    flush,
    manual,
    of,
    recognise,
    recognise_file,
)
from tests.rpc.recognition.many import Caller, Many, act, end
from tests.unit.recognition.piper_speech import SENTENCES, pcm16, silence, speak
from tests.unit.recognition.test_speakers import high, wav

MUTE = pb.KnownSpeaker(name="Ann", audio=b"no audio")


def turns() -> list[np.ndarray]:
    """Two voices in turn."""
    return [speak(SENTENCES[0]), high(SENTENCES[1]), speak(SENTENCES[1])]


def config(**fields: Any) -> pb.RecognitionConfig:
    known = pb.KnownSpeaker(name="Ann", audio=wav(high(SENTENCES[0])))
    diarization = pb.Diarization(known_speakers=[known])
    return pb.RecognitionConfig(diarization=diarization, **fields)


def speakers(finals: list[pb.FinalTranscript]) -> list[str]:
    return [segment.speaker for final in finals for segment in final.segments]


async def test_live_segments_say_who_speaks(stub: Any) -> None:
    listed = await stub.ListRecognizers(pb.ListRecognizersRequest())
    assert listed.recognizers[0].diarizes
    requests = []
    for number, audio in enumerate(turns()):
        requests += [*audio_requests(pcm16(audio)), flush(str(number))]
    asked = config(turn_detection=manual())
    events = await recognise(stub, requests, asked)
    assert [final.tag for final in of(events, "final")] == ["0", "1", "2"]
    assert speakers(of(events, "final")) == ["A", "Ann", "A"]


async def test_a_shared_call_has_labels_for_the_streams_that_ask(stub: Any) -> None:
    caller = Caller(stub)
    audio = pcm16(turns()[1])
    for name, asked in (
        ("who", config(turn_detection=manual())),
        ("what", pb.RecognitionConfig(turn_detection=manual())),
        ("bad", pb.RecognitionConfig(diarization=pb.Diarization(known_speakers=[MUTE]))),
    ):
        await caller.send(act(name, start=pb.StartRecognition(config=asked)))
    for name in ("who", "what"):
        await caller.send(Many(stream_ids=[name], audio=[audio]))
        await caller.send(act(name, message=flush("x")), end(name))
    await caller.read_until_ended("who", "what", "bad")
    caller.call.cancel()
    assert speakers(of(caller.heard["who"], "final")) == ["Ann"]
    assert speakers(of(caller.heard["what"], "final")) == [""]
    assert [kind for kind, _ in caller.heard["bad"]] == ["error"]


async def test_a_files_segments_say_who_speaks(stub: Any) -> None:
    audio = np.concatenate([piece for turn in turns() for piece in (turn, silence(2.5))])
    segments, _ = await recognise_file(stub, wav(audio), config())
    assert [segment.speaker for segment in segments] == ["A", "Ann", "A"]


async def test_a_sample_that_cannot_serve_ends_the_call(stub: Any) -> None:
    short = pb.KnownSpeaker(name="Ann", audio=wav(silence(1.0)))
    asked = pb.RecognitionConfig(diarization=pb.Diarization(known_speakers=[short]))
    for call in (recognise(stub, [], asked), recognise_file(stub, wav(silence(0.5)), asked)):
        with pytest.raises(InvalidArgument, match="2 to 10 s") as caught:
            await call
        assert caught.value.field == "config.diarization.known_speakers[0].audio"
        assert caught.value.reason == "INVALID_AUDIO"


async def test_keywords_reach_the_recogniser(stub: Any) -> None:
    audio = wav(speak("My name is Siobhan O'Reilly."))
    _, plain = await recognise_file(stub, audio)
    _, told = await recognise_file(stub, audio, pb.RecognitionConfig(keywords=["Siobhan"]))
    assert "Siobhan" not in plain.text
    assert "Siobhan" in told.text


def known(*names: str, audio: bytes = b"x") -> list[pb.KnownSpeaker]:
    return [pb.KnownSpeaker(name=name, audio=audio) for name in names]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"max_speakers": 27}, "diarization.max_speakers", "1 to 26"),
    ({"max_speakers": -1}, "diarization.max_speakers", "1 to 26"),
    ({"max_speakers": 1, "known_speakers": known("a", "b")}, "diarization.max_speakers", "2 to"),
    ({"known_speakers": known(*"abcde")}, "diarization.known_speakers", "limit is 4"),
    ({"known_speakers": known("a", "a")}, "diarization.known_speakers[1].name", "unique"),
    ({"known_speakers": known("")}, "diarization.known_speakers[0].name", "1 to 64"),
    ({"known_speakers": known("a" * 65)}, "diarization.known_speakers[0].name", "1 to 64"),
    ({"known_speakers": known("a", audio=b"")}, "diarization.known_speakers[0].audio", "empty"),
    (
        {"known_speakers": known("a", audio=bytes((4 << 20) + 1))},
        "diarization.known_speakers[0].audio",
        "limit is 4194304",
    ),
]
WRONG_KEYWORDS = [
    (["word"] * 101, "keywords", "limit is 100"),
    (["fine", "a" * 101], "keywords[1]", "limit is 100"),
    (["fine", " "], "keywords[1]", "blank"),
]
INFO = RecognizerInfo(["en"], translates=False, diarizes=True)
SETTINGS = RecognitionSettings()


def refusal(asked: pb.RecognitionConfig, info: RecognizerInfo = INFO) -> AntiphonError:
    """What both kinds of calls answer."""
    with pytest.raises(AntiphonError) as live:
        stream_options(asked, SETTINGS, info)
    with pytest.raises(AntiphonError) as file:
        file_request(asked, SETTINGS, info, job=1, path="x")
    assert (live.value.field, live.value.message) == (file.value.field, file.value.message)
    return live.value


@pytest.mark.parametrize(("fields", "field", "says"), WRONG)
def test_a_wrong_field_is_named(fields: dict[str, Any], field: str, says: str) -> None:
    error = refusal(pb.RecognitionConfig(diarization=pb.Diarization(**fields)))
    assert isinstance(error, InvalidArgument)
    assert error.field == f"config.{field}"
    assert says in f"{error.message} {error.metadata}"


@pytest.mark.parametrize(("keywords", "field", "says"), WRONG_KEYWORDS)
def test_a_wrong_keyword_is_named(keywords: list[str], field: str, says: str) -> None:
    error = refusal(pb.RecognitionConfig(keywords=keywords))
    assert (error.field, isinstance(error, InvalidArgument)) == (f"config.{field}", True)
    assert says in error.message


def test_the_cap_is_the_settings_and_never_below_the_known() -> None:
    asked = pb.RecognitionConfig(diarization=pb.Diarization(known_speakers=known(*"abcd")))
    for settings, most in ((SETTINGS, 8), (RecognitionSettings(max_speakers=2), 4)):
        options = stream_options(asked, settings, INFO).speakers
        assert options is not None and options.most == most


def test_without_a_model_the_call_is_refused_with_what_to_do() -> None:
    asked = pb.RecognitionConfig(diarization=pb.Diarization())
    error = refusal(asked, RecognizerInfo(["en"], translates=False))
    assert isinstance(error, FailedPrecondition)
    assert error.reason == "SPEAKER_MODEL_MISSING"
    assert "recognition.speaker_model" in error.message


@pytest.mark.slow
def test_a_wrong_configured_model_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("no model")
    server = RecognitionServer(RecognitionSettings(speaker_model=tmp_path / "model.onnx"))
    with pytest.raises(FailedPrecondition, match="does not load") as caught:
        server.start()
    assert caught.value.field == "recognition.speaker_model"
