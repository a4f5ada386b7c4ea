"""The unmodified openai SDK against the Piper voice and whisper tiny through Envoy."""

from __future__ import annotations

import base64
import io
import wave
from pathlib import Path

import av
import numpy as np
import openai
import pytest
from antiphon_cli.talk.speech import word_error_rate
from antiphon_cli.tour import SENTENCE
from support.suite import RunningSuite

from tests.unit.recognition.piper_speech import SENTENCES, silence, speak
from tests.unit.recognition.test_speakers import high, wav

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def client(suite: RunningSuite) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{suite.url}/v1", api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def spoken(client: openai.OpenAI, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speech") / "fox.wav"
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=SENTENCE, response_format="wav"
    ) as response:
        response.stream_to_file(path)
    return path


def test_the_speech_file_is_sound(spoken: Path):
    with wave.open(str(spoken)) as file:
        assert file.getnchannels() == 1
        frames = file.readframes(file.getnframes())
        seconds = file.getnframes() / file.getframerate()
    samples = np.frombuffer(frames, "<i2")
    assert 1.5 < seconds < 6.0
    assert np.abs(samples).max() > 2000
    assert len(frames) + 44 == spoken.stat().st_size


def test_the_suite_understands_its_own_speech(client: openai.OpenAI, spoken: Path):
    with spoken.open("rb") as file:
        heard = client.audio.transcriptions.create(model="whisper-1", file=file)
    assert word_error_rate(SENTENCE, heard.text) <= 0.15


@pytest.mark.parametrize("container", ["mp3", "opus", "flac", "aac", "wav", "pcm"])
def test_every_format_holds_the_same_speech(client: openai.OpenAI, container: str):
    audio = client.audio.speech.create(
        model="tts-1", voice="nova", input=SENTENCE, response_format=container
    ).content
    if container == "pcm":
        seconds = len(audio) / 2 / 24_000
    else:
        with av.open(io.BytesIO(audio)) as file:
            frames = list(file.decode(audio=0))
        seconds = sum(frame.samples / frame.sample_rate for frame in frames)
    assert 1.5 < seconds < 6.0


def test_verbose_transcription_has_segments_and_words(client: openai.OpenAI, spoken: Path):
    with spoken.open("rb") as file:
        heard = client.audio.transcriptions.create(
            model="whisper-1",
            file=file,
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )
    assert heard.segments and heard.words
    starts = [word.start for word in heard.words]
    assert starts == sorted(starts)
    assert heard.words[-1].end <= heard.duration + 0.1


def test_a_transcription_streams(client: openai.OpenAI, spoken: Path):
    with spoken.open("rb") as file:
        events = list(client.audio.transcriptions.create(model="whisper-1", file=file, stream=True))
    assert events[-1].type == "transcript.text.done"
    deltas = "".join(e.delta for e in events if e.type == "transcript.text.delta")
    assert deltas.strip() == events[-1].text.strip()


def test_segments_say_who_speaks(client: openai.OpenAI):
    audio = np.concatenate([speak(SENTENCES[0]), silence(2.5), high(SENTENCES[1])])
    asked = {
        "model": "gpt-4o-transcribe-diarize",
        "file": ("call.wav", wav(audio)),
        "response_format": "diarized_json",
        "chunking_strategy": "auto",
        "known_speaker_names": ["Ann"],
    }

    def reference(sample: bytes) -> dict[str, list[str]]:
        url = f"data:audio/wav;base64,{base64.b64encode(sample).decode()}"
        return {"known_speaker_references": [url]}

    sample = wav(high(SENTENCES[0]))
    events = list(client.audio.transcriptions.create(**asked, **reference(sample), stream=True))
    segments = [event for event in events if event.type == "transcript.text.segment"]
    assert [segment.speaker for segment in segments] == ["A", "Ann"]
    assert events[-1].text.split() == " ".join(segment.text for segment in segments).split()
    assert segments[-1].end <= events[-1].usage.seconds + 0.1
    with pytest.raises(openai.BadRequestError, match="2 to 10 s") as refused:
        client.audio.transcriptions.create(**asked, **reference(wav(silence(1.0))))
    assert refused.value.param == "known_speaker_references[0]"


@pytest.mark.parametrize(
    ("changes", "error", "param"),
    [
        ({"voice": "nobody-at-all"}, openai.BadRequestError, "voice"),
        ({"model": "tts-99"}, openai.NotFoundError, "model"),
        ({"input": ""}, openai.BadRequestError, "input"),
        ({"input": "x" * 5000}, openai.BadRequestError, "input"),
        ({"response_format": "midi"}, openai.BadRequestError, "response_format"),
        ({"speed": 40.0}, openai.BadRequestError, "speed"),
    ],
)
def test_bad_speech_requests_name_the_field(
    client: openai.OpenAI, changes: dict, error: type, param: str
):
    body = {"model": "tts-1", "voice": "alloy", "input": "Hello."} | changes
    with pytest.raises(error) as refused:
        client.audio.speech.create(**body)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "content", [b"", b"this is a text file, not audio", bytes(range(256)) * 64], ids=str
)
def test_undecodable_audio_is_refused(client: openai.OpenAI, content: bytes):
    with pytest.raises(openai.BadRequestError):
        client.audio.transcriptions.create(model="whisper-1", file=("noise.wav", content))
