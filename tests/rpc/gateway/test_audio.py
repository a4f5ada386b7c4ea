"""Speech, transcriptions, voices and models over real sockets."""

from __future__ import annotations

import base64

import httpx
import pytest
from antiphon.common.v1 import audio_pb2
from antiphon_core.errors import InvalidArgument, ResourceExhausted, Unavailable
from fake_backends import RecognitionScript, SpeechScript
from gateway_bench import GatewayBench, events_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILE = b"".join(SpeechScript().chunks)


async def speak(bench: GatewayBench, **fields: object) -> httpx.Response:
    body = {"model": "tts-1", "voice": "alloy", "input": "Hello.", **fields}
    return await bench.http.post("/v1/audio/speech", json=body)


async def transcribe(
    bench: GatewayBench, path: str = "transcriptions", **fields: object
) -> httpx.Response:
    return await bench.http.post(
        f"/v1/audio/{path}",
        data={"model": "whisper-1", **fields},
        files={"file": ("speech.wav", b"RIFF" + bytes(1000), "audio/wav")},
    )


@pytest.mark.parametrize(
    ("name", "encoding", "rate"),
    [
        ("pcm", audio_pb2.AUDIO_ENCODING_PCM16, 24_000),
        ("wav", audio_pb2.AUDIO_ENCODING_WAV, 0),
        ("mp3", audio_pb2.AUDIO_ENCODING_MP3, 0),
        ("opus", audio_pb2.AUDIO_ENCODING_OPUS, 0),
        ("flac", audio_pb2.AUDIO_ENCODING_FLAC, 0),
        ("aac", audio_pb2.AUDIO_ENCODING_AAC, 0),
    ],
)
async def test_formats(bench: GatewayBench, name: str, encoding: int, rate: int) -> None:
    response = await speak(bench, response_format=name, speed=1.5)
    assert response.status_code == 200
    assert response.content == FILE
    assert response.headers["content-type"] == f"audio/x-test-{encoding}"
    assert response.headers["transfer-encoding"] == "chunked"
    config = bench.fakes.vocoder.calls.requests[-1]
    assert (config.output_format.encoding, config.output_format.sample_rate_hz) == (encoding, rate)
    assert config.speed == 1.5
    assert config.voice == ""
    assert bench.fakes.vocoder.texts[-1] == "Hello."


async def test_exact_wav_unless_streaming_is_asked_for(bench: GatewayBench) -> None:
    await speak(bench, response_format="wav")
    assert bench.fakes.vocoder.calls.requests[-1].exact_container
    await speak(bench, response_format="wav", stream_format="audio")
    assert not bench.fakes.vocoder.calls.requests[-1].exact_container


async def test_events_join_to_the_file(bench: GatewayBench) -> None:
    response = await speak(bench, stream_format="sse", response_format="pcm")
    events = events_of(response.text)
    assert events[-1]["type"] == "speech.audio.done"
    assert events[-1]["usage"]["seconds"] == 0.03
    deltas = events[:-1]
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == FILE


async def test_voice_by_id_object(bench: GatewayBench) -> None:
    await speak(bench, voice={"id": "ann"})
    assert bench.fakes.vocoder.calls.requests[-1].voice == "ann"


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"input": ""}, 400, "invalid_value", "input"),
        ({"input": " \n"}, 400, "invalid_value", "input"),
        ({"input": "x" * 4097}, 400, "invalid_value", "input"),
        ({"response_format": "midi"}, 400, "invalid_value", "response_format"),
        ({"speed": 5}, 400, "invalid_value", "speed"),
        ({"voice": "nobody"}, 400, "voice_not_found", "voice"),
        ({"model": "gpt-9"}, 404, "model_not_found", "model"),
    ],
)
async def test_speech_refusals(
    bench: GatewayBench, fields: dict, status: int, code: str, param: str
) -> None:
    response = await speak(bench, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, param)


async def test_slots_full_is_429(bench: GatewayBench) -> None:
    bench.fakes.vocoder.script = SpeechScript(
        fail_before=ResourceExhausted("all slots are taken", reason="SLOTS_FULL", retry_after=0.5)
    )
    response = await speak(bench)
    assert (response.status_code, response.json()["error"]["code"]) == (429, "capacity_exceeded")
    assert response.headers["retry-after-ms"] == "500"


async def test_speech_that_breaks_off_is_no_whole_file(bench: GatewayBench) -> None:
    failure = Unavailable("died", reason="WORKER_DIED")
    bench.fakes.vocoder.script = SpeechScript(fail_after_chunks=1, failure=failure)
    with pytest.raises(httpx.RemoteProtocolError):
        await speak(bench)
    events = events_of((await speak(bench, stream_format="sse")).text)
    assert events[-1]["error"]["code"] == "bad_gateway"
    bench.fakes.vocoder.script = SpeechScript(fail_after_chunks=0, failure=failure)
    assert (await speak(bench)).status_code == 502


async def test_transcription_formats(bench: GatewayBench) -> None:
    body = (await transcribe(bench, language="en", prompt="names", temperature="0.5")).json()
    assert body == {"text": "Hello there. Bye.", "usage": {"seconds": 2.5, "type": "duration"}}
    config = bench.fakes.recognition.calls.requests[-1]
    assert (config.language, config.prompt, config.temperature) == ("en", "names", 0.5)
    assert bench.fakes.recognition.files[-1] == b"RIFF" + bytes(1000)
    assert (await transcribe(bench, response_format="text")).text == "Hello there. Bye.\n"
    assert (await transcribe(bench, response_format="srt")).text == (
        "1\n00:00:00,000 --> 00:00:01,250\nHello there.\n\n"
        "2\n00:00:01,250 --> 00:00:02,500\nBye.\n\n"
    )
    assert (await transcribe(bench, response_format="vtt")).text == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.250\nHello there.\n\n"
        "00:00:01.250 --> 00:00:02.500\nBye.\n\n"
    )


async def test_verbose_transcription(bench: GatewayBench) -> None:
    fields = {
        "response_format": "verbose_json",
        "timestamp_granularities[]": ["word", "segment"],
    }
    body = (await transcribe(bench, **fields)).json()
    assert (body["task"], body["language"], body["duration"]) == ("transcribe", "en", 2.5)
    assert [segment["id"] for segment in body["segments"]] == [0, 1]
    assert body["words"][0] == {"word": "Hello", "start": 0.0, "end": 1.25}
    assert "words" not in (await transcribe(bench, response_format="verbose_json")).json()


async def test_transcription_stream(bench: GatewayBench) -> None:
    response = await transcribe(bench, stream="true")
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.text)
    assert [event["type"] for event in events] == [
        "transcript.text.delta",
        "transcript.text.delta",
        "transcript.text.done",
    ]
    joined = "".join(event["delta"] for event in events[:-1])
    assert events[-1]["text"] == joined == "Hello there. Bye."


async def test_log_probabilities_of_tokens_come_where_they_are_included(
    bench: GatewayBench,
) -> None:
    whole = (await transcribe(bench, **{"include[]": "logprobs"})).json()
    assert bench.fakes.recognition.calls.requests[-1].token_logprobs
    assert b"".join(bytes(item["bytes"]) for item in whole["logprobs"]).decode() == (
        " Hello there. Bye."
    )
    assert whole["logprobs"][0] == {
        "token": " Hello",
        "bytes": list(b" Hello"),
        "logprob": -0.5,
    }
    streamed = await transcribe(bench, stream="true", **{"include[]": "logprobs"})
    *deltas, done = events_of(streamed.text)
    assert [item for delta in deltas for item in delta["logprobs"]] == done["logprobs"]
    assert done["logprobs"] == whole["logprobs"]
    plain = (await transcribe(bench)).json()
    assert "logprobs" not in plain


async def test_keywords_and_a_single_language_reach_the_recogniser(bench: GatewayBench) -> None:
    fields = {"keywords[]": ["Antiphon", "Envoy"], "languages[]": "de"}
    assert (await transcribe(bench, **fields)).status_code == 200
    config = bench.fakes.recognition.calls.requests[-1]
    assert (list(config.keywords), config.language) == (["Antiphon", "Envoy"], "de")
    assert not config.HasField("diarization")


async def test_translation_speaks_english_or_refuses(bench: GatewayBench) -> None:
    assert (await transcribe(bench, "translations")).status_code == 200
    task = bench.fakes.recognition.calls.requests[-1].task
    assert task == 2
    refused = await transcribe(bench, "translations", model="unknown")
    assert refused.status_code == 404


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "nan"}, "temperature"),
        ({"temperature": "2"}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"languages[]": ["en", "de"]}, "languages"),
        ({"language": "en", "languages[]": "de"}, "languages"),
        ({"keywords[]": ["x", "y" * 101]}, "keywords[1]"),
        ({"keywords[]": ["x"] * 101}, "keywords"),
        ({"stream": "maybe"}, "stream"),
        ({"stream": "true", "response_format": "srt"}, "stream"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        ({"include[]": "probabilities"}, "include[0]"),
        ({"include[]": "logprobs", "response_format": "text"}, "include"),
        ({"chunking_strategy[type]": "server_vad"}, "chunking_strategy"),
    ],
)
async def test_transcription_refusals(bench: GatewayBench, fields: dict, param: str) -> None:
    response = await transcribe(bench, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


async def test_undecodable_audio(bench: GatewayBench) -> None:
    bench.fakes.recognition.script = RecognitionScript(
        fail_before=InvalidArgument("cannot be decoded", reason="INVALID_AUDIO", field="file")
    )
    for stream in ("false", "true"):
        response = await transcribe(bench, stream=stream)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "invalid_audio"


async def test_transcription_stream_that_fails_late(bench: GatewayBench) -> None:
    bench.fakes.recognition.script = RecognitionScript(
        fail_after_segments=1, failure=Unavailable("died", reason="WORKER_DIED")
    )
    events = events_of((await transcribe(bench, stream="true")).text)
    assert events[-1]["error"]["code"] == "bad_gateway"


async def test_malformed_uploads(bench: GatewayBench) -> None:
    url = "/v1/audio/transcriptions"
    no_file = await bench.http.post(url, data={"model": "whisper-1"}, files={"other": b"x"})
    assert (no_file.status_code, no_file.json()["error"]["param"]) == (400, "file")
    empty = await bench.http.post(url, files={"file": ("a.wav", b"")})
    assert empty.json()["error"]["code"] == "invalid_audio"
    as_json = await bench.http.post(url, json={"file": "x"})
    assert as_json.status_code == 415
    kind = {"content-type": "multipart/form-data; boundary=b"}
    for body in (b"", b"garbage", b"--b\r\nContent-Disposition: form-data; name=x\r\n\r\nx"):
        response = await bench.http.post(url, content=body, headers=kind)
        assert response.status_code == 400, body


async def test_models_and_voices(bench: GatewayBench) -> None:
    models = (await bench.http.get("/v1/models")).json()
    ids = [model["id"] for model in models["data"]]
    assert models["object"] == "list"
    assert {"org/small-model", "small", "base-model", "piper", "tts-1", "whisper-tiny"} <= set(ids)
    assert len(ids) == len(set(ids))
    heard = (await bench.http.get("/v1/models/gpt-4o-transcribe-diarize")).json()
    assert (heard["parent"], heard["capabilities"]) == (
        "whisper-tiny",
        ["transcription", "diarization"],
    )
    one = (await bench.http.get("/v1/models/org/small-model")).json()
    assert (one["id"], one["object"], one["max_context"]) == ("org/small-model", "model", 2048)
    assert (await bench.http.get("/v1/models/small-model")).json()["id"] == "org/small-model"
    missing = await bench.http.get("/v1/models/gpt-9")
    assert missing.status_code == 404
    assert "org/small-model" in missing.json()["error"]["message"]
    voices = (await bench.http.get("/v1/audio/voices")).json()["data"]
    assert [voice["id"] for voice in voices] == ["joe", "ann"]
    assert voices[0]["object"] == "audio.voice"
    assert "alloy" in voices[0]["aliases"]
