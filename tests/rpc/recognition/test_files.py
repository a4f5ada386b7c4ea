"""Recognize: containers, limits, silence, words, and agreement with the live path."""

from __future__ import annotations

import io
import struct
import wave
from typing import Any

import numpy as np
import pytest
from antiphon.common.v1 import audio_pb2
from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core.errors import InvalidArgument

from tests.rpc.recognition.live import (
    audio_requests,
    encode,
    of,
    plain,
    recognise,
    recognise_file,
    word_error_rate,
)
from tests.unit.recognition.piper_speech import SENTENCES, pcm16, silence, speak


def story(count: int, pause: float = 0.6) -> np.ndarray:
    pieces = [piece for text in SENTENCES[:count] for piece in (speak(text), silence(pause))]
    return np.concatenate(pieces)


def wav(audio: np.ndarray, rate: int) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm16(audio))
    return buffer.getvalue()


def with_list_chunks(data: bytes) -> bytes:
    """The same WAVE with a LIST chunk of odd size before, and one after, its audio."""
    chunk = b"LIST" + struct.pack("<I", 7) + b"INFOabc\0"
    body = data[12:36] + chunk + data[36:] + chunk
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


CONTAINERS = {
    "wav": lambda audio: wav(audio, 22050),
    "wav with LIST": lambda audio: with_list_chunks(wav(audio, 22050)),
    "mp3": lambda audio: encode(audio, 22050, "mp3", "libmp3lame"),
    "flac": lambda audio: encode(audio, 22050, "flac", "flac"),
    "m4a": lambda audio: encode(audio, 22050, "ipod", "aac"),
}


@pytest.mark.parametrize("name", list(CONTAINERS))
async def test_any_container_is_understood(stub: Any, name: str) -> None:
    text = SENTENCES[1]
    segments, finished = await recognise_file(stub, CONTAINERS[name](speak(text, 22050)))
    assert word_error_rate([text], [finished.text]) <= 0.12
    assert finished.language == "en"
    assert plain("".join(segment.text for segment in segments)) == plain(finished.text)


async def test_ogg_opus_is_understood(stub: Any) -> None:
    data = encode(speak(SENTENCES[2], 48000), 48000, "ogg", "libopus")
    _, finished = await recognise_file(stub, data, size=777)
    assert word_error_rate([SENTENCES[2]], [finished.text]) <= 0.12


@pytest.mark.parametrize(("first", "second"), [(3, 1), pytest.param(10, 4, marks=pytest.mark.slow)])
async def test_a_file_of_several_passes_has_monotone_times_and_all_its_words(
    stub: Any, first: int, second: int
) -> None:
    audio = np.concatenate([story(first), silence(3), story(second)])
    config = pb.RecognitionConfig(words=True)
    segments, finished = await recognise_file(stub, wav(audio, 16000), config)
    spoken = " ".join([*SENTENCES[:first], *SENTENCES[:second]])
    assert word_error_rate([spoken], [finished.text]) <= 0.12
    times = [time for segment in segments for time in (segment.start_ms, segment.end_ms)]
    assert times == sorted(times) and times[-1] <= len(audio) / 16
    words = [word for segment in segments for word in segment.words]
    assert plain(" ".join(word.text for word in words)) == plain(finished.text)
    assert finished.audio_duration.ToTimedelta().total_seconds() == pytest.approx(len(audio) / 16e3)


async def test_a_file_and_a_stream_agree(stub: Any) -> None:
    audio = np.concatenate([silence(0.3), story(3, pause=1.0)])
    _, finished = await recognise_file(stub, wav(audio, 16000))
    events = await recognise(stub, audio_requests(pcm16(audio)))
    streamed = " ".join(final.text for final in of(events, "final"))
    spoken = [" ".join(SENTENCES[:3])]
    file_rate, stream_rate = (
        word_error_rate(spoken, [finished.text]),
        word_error_rate(spoken, [streamed]),
    )
    assert file_rate <= stream_rate + 0.02 or file_rate <= 0.04


async def test_headerless_audio_is_read_as_told(stub: Any) -> None:
    form = audio_pb2.AudioFormat(encoding=audio_pb2.AUDIO_ENCODING_PCM16, sample_rate_hz=24000)
    data = pcm16(speak(SENTENCES[0], 24000))
    _, finished = await recognise_file(stub, data, pb.RecognitionConfig(format=form))
    assert word_error_rate([SENTENCES[0]], [finished.text]) <= 0.12


async def test_a_silent_file_has_no_text(stub: Any) -> None:
    segments, finished = await recognise_file(stub, wav(silence(5), 16000))
    assert (segments, finished.text) == ([], "")


@pytest.mark.parametrize(
    ("data", "problem"),
    [(b"", "empty"), (b"this is a text file, no audio" * 50, "decoded"), (b"RIFF", "decoded")],
)
async def test_what_is_no_audio_is_refused(stub: Any, data: bytes, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem) as caught:
        await recognise_file(stub, data)
    assert (caught.value.reason, caught.value.field) == ("INVALID_AUDIO", "audio")


async def test_audio_past_the_limit_is_refused(stub: Any) -> None:
    with pytest.raises(InvalidArgument, match="longer than") as caught:
        await recognise_file(stub, wav(silence(121, 8000), 8000))
    assert caught.value.reason == "INVALID_AUDIO"


async def test_translation_is_refused_by_an_english_recogniser(stub: Any) -> None:
    config = pb.RecognitionConfig(task=pb.RECOGNITION_TASK_TRANSLATE)
    with pytest.raises(InvalidArgument) as caught:
        await recognise_file(stub, wav(speak(SENTENCES[0]), 16000), config)
    assert (caught.value.reason, caught.value.field) == ("UNSUPPORTED_OPTION", "config.task")
