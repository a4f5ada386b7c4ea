"""StreamingRecognize on the real detector and recogniser."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from itertools import pairwise
from typing import Any

import grpc
import numpy as np
import pytest
from antiphon.common.v1 import audio_pb2
from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core.errors import AntiphonError, InvalidArgument, NotFound, Unavailable
from antiphon_core.rpc.errors import from_rpc_error
from antiphon_core.rpc.streams import read_all
from antiphon_vocoder.formats import Encoding
from antiphon_vocoder.formats.pcm import encode_g711
from google.protobuf.duration_pb2 import Duration
from support.waiting import until

from tests.rpc.recognition import many
from tests.rpc.recognition.conftest import RecognitionServer
from tests.rpc.recognition.live import (
    Request,
    audio_requests,
    flush,
    manual,
    of,
    plain,
    recognise,
    word_error_rate,
)
from tests.unit.recognition.piper_speech import SENTENCES, pcm16, silence, speak

FOX = SENTENCES[0]


def conversation(rate: int = 16000) -> tuple[np.ndarray, list[tuple[float, float]]]:
    """All sentences with pauses between, and where each is, in seconds."""
    pieces, places, at = [silence(0.5, rate)], [], 0.5
    for text in SENTENCES:
        spoken = speak(text, rate)
        places.append((at, at + len(spoken) / rate))
        pieces += [spoken, silence(1.0, rate)]
        at = places[-1][1] + 1.0
    return np.concatenate(pieces), places


async def test_a_conversation_is_cut_into_its_sentences_and_understood(stub: Any) -> None:
    audio, places = conversation()
    events = await recognise(stub, audio_requests(pcm16(audio)))
    assert [kind for kind, _ in (events[0], events[-1])] == ["ready", "finished"]
    assert (events[0][1].model, events[0][1].detector) == ("whisper-tiny.en", "silero")
    starts, stops = of(events, "speech_started"), of(events, "speech_stopped")
    finals = of(events, "final")
    assert [final.utterance for final in finals] == list(range(len(SENTENCES)))
    for (begin, end), start, stop, final in zip(places, starts, stops, finals, strict=True):
        assert begin * 1000 - 400 <= start.at_ms <= begin * 1000 + 100
        assert abs(stop.at_ms - end * 1000) < 350
        assert (final.start_ms, final.end_ms) == (start.at_ms, stop.at_ms)
        assert all(start.at_ms <= s.start_ms <= s.end_ms <= stop.at_ms for s in final.segments)
    assert word_error_rate(list(SENTENCES), [final.text for final in finals]) <= 0.12
    assert all(final.confidence > 0.5 > final.no_speech_probability for final in finals)
    finished = events[-1][1]
    assert finished.audio_duration.ToTimedelta().total_seconds() == pytest.approx(len(audio) / 16e3)
    assert finished.utterance_count == len(SENTENCES)


async def test_events_do_not_depend_on_the_cut_of_the_bytes(stub: Any) -> None:
    audio = np.concatenate([silence(0.4), speak(FOX), silence(0.8), speak(SENTENCES[1])])
    config = pb.RecognitionConfig(skip_transcription=True)
    whole = await recognise(stub, audio_requests(pcm16(audio), 1 << 20), config)
    sizes = np.random.default_rng(5).integers(1, 999, 4000)
    data, cuts = pcm16(audio), [0, *np.cumsum(sizes).tolist()]
    pieces = [Request(audio=data[a:b]) for a, b in pairwise(cuts) if data[a:b]]
    assert await recognise(stub, pieces, config) == whole
    assert len(of(whole, "speech_started")) == 2 and not of(whole, "final")


@pytest.mark.parametrize(
    ("encoding", "rate"),
    [("PCMU", 8000), ("PCMA", 8000), ("PCM16", 8000), ("PCM16", 24000), ("PCM16", 48000)],
)
async def test_other_formats_are_heard_alike(stub: Any, encoding: str, rate: int) -> None:
    audio = np.concatenate([silence(0.4, rate), speak(FOX, rate), silence(0.7, rate)])
    data = pcm16(audio)
    if encoding != "PCM16":
        data = encode_g711(np.frombuffer(data, "<i2"), Encoding(encoding.lower()))
    number = audio_pb2.AudioEncoding.Value(f"AUDIO_ENCODING_{encoding}")
    config = pb.RecognitionConfig(
        format=audio_pb2.AudioFormat(encoding=number, sample_rate_hz=rate)
    )
    events = await recognise(stub, audio_requests(data, 9_999), config)
    (final,) = of(events, "final")
    assert word_error_rate([FOX], [final.text]) <= 0.12
    assert abs(final.start_ms - 100) < 150


def sounds() -> dict[str, np.ndarray]:
    seconds = np.arange(16000 * 8) / 16000
    noise = np.random.default_rng(2).normal(0, 1, len(seconds))
    chord = sum(np.sin(2 * np.pi * f * seconds) for f in (261.6, 329.6, 392.0))
    beat = (np.sin(2 * np.pi * 2 * seconds) > 0) * np.sin(2 * np.pi * 110 * seconds)
    return {
        "silence": np.zeros_like(seconds),
        "quiet noise": 0.01 * noise,
        "loud noise": 0.3 * noise,
        "tone": 0.4 * np.sin(2 * np.pi * 440 * seconds),
        "chord": 0.2 * chord,
        "beat": 0.2 * chord * (np.sin(2 * np.pi * seconds) > 0) + 0.3 * beat,
    }


@pytest.mark.parametrize("name", list(sounds()))
async def test_what_is_no_speech_gives_an_empty_final(stub: Any, name: str) -> None:
    data = pcm16(sounds()[name].astype(np.float32))
    config = pb.RecognitionConfig(turn_detection=manual())
    events = await recognise(stub, [*audio_requests(data), flush("t")], config)
    (final,) = of(events, "final")
    assert (final.text, final.tag) == ("", "t")
    live = await recognise(stub, audio_requests(data))
    assert all(final.text == "" for final in of(live, "final"))


async def test_manual_turns_end_at_flushes(stub: Any) -> None:
    requests = [
        *audio_requests(pcm16(np.concatenate([speak(FOX), silence(0.9), speak(SENTENCES[3])]))),
        flush("one"),
        flush("two"),
        *audio_requests(pcm16(speak(SENTENCES[1]))),
        Request(reset=pb.RecognitionReset()),
        *audio_requests(pcm16(speak(SENTENCES[2]))),
        flush("three"),
    ]
    config = pb.RecognitionConfig(turn_detection=manual(), partials=True)
    events = await recognise(stub, requests, config)
    assert not of(events, "speech_started")
    one, two, three = of(events, "final")
    assert [final.tag for final in (one, two, three)] == ["one", "two", "three"]
    assert word_error_rate([f"{FOX} {SENTENCES[3]}"], [one.text]) <= 0.15
    assert two.text == ""
    assert word_error_rate([SENTENCES[2]], [three.text]) <= 0.12
    assert three.start_ms == (two.end_ms * 16 + len(speak(SENTENCES[1]))) // 16


async def test_flush_before_any_audio_is_an_empty_final(stub: Any) -> None:
    events = await recognise(stub, [flush("nothing")])
    (final,) = of(events, "final")
    assert (final.text, final.tag, final.start_ms, final.end_ms) == ("", "nothing", 0, 0)


async def test_flush_and_reset_in_any_mixture_answer_every_flush_once(stub: Any) -> None:
    random = np.random.default_rng(8)
    data = pcm16(np.concatenate([speak(text) for text in SENTENCES[:3]]))
    requests, tags, at = [], [], 0
    while at < len(data):
        size = int(random.integers(100, 40_000))
        requests.append(Request(audio=data[at : at + size]))
        at += size
        if random.random() < 0.3:
            requests.append(Request(reset=pb.RecognitionReset()))
        if random.random() < 0.4:
            tags.append(str(len(tags)))
            requests.append(flush(tags[-1]))
    events = await recognise(stub, requests)
    finals = of(events, "final")
    assert [final.tag for final in finals if final.tag] == tags
    numbers = [final.utterance for final in finals]
    assert numbers == sorted(set(numbers))


async def test_turn_detection_changes_while_the_stream_runs(stub: Any) -> None:
    spoken = pcm16(np.concatenate([silence(0.3), speak(FOX), silence(1.0)]))
    vad = pb.TurnDetection(mode=pb.TurnDetection.MODE_SERVER_VAD, silence=Duration(nanos=300000000))
    requests = [
        *audio_requests(spoken),
        flush("manual"),
        Request(turn_detection=vad),
        *audio_requests(spoken),
        Request(turn_detection=manual()),
        *audio_requests(spoken),
        flush("again"),
    ]
    events = await recognise(stub, requests, pb.RecognitionConfig(turn_detection=manual()))
    assert [final.tag for final in of(events, "final")] == ["manual", "", "again"]
    assert all(plain(FOX) == plain(final.text) for final in of(events, "final"))
    assert len(of(events, "speech_started")) == len(of(events, "speech_stopped")) == 1


async def test_two_streams_at_once_do_not_mix(stub: Any) -> None:
    async def one(text: str) -> str:
        audio = np.concatenate([silence(0.3), speak(text), silence(0.8)])
        events = await recognise(stub, audio_requests(pcm16(audio), 640))
        (final,) = of(events, "final")
        return final.text

    texts = SENTENCES[:2] * 2
    answers = await asyncio.gather(*(one(text) for text in texts))
    assert answers[:2] == answers[2:]
    assert word_error_rate(list(texts), list(answers)) <= 0.12


async def test_partials_precede_the_final_and_keep_their_stable_part(stub: Any) -> None:
    audio = np.concatenate([silence(0.3), speak(SENTENCES[2]), silence(0.8)])

    async def paced() -> Any:
        yield Request(config=pb.RecognitionConfig(partials=True, words=True))
        for request in audio_requests(pcm16(audio), 3200):
            yield request
            await asyncio.sleep(0.1)

    kept, partials, final = "", 0, None
    async for response in stub.StreamingRecognize(paced()):
        if response.HasField("partial"):
            assert final is None
            assert response.partial.text.startswith(kept)
            kept = response.partial.text[: response.partial.stable_characters]
            partials += 1
        if response.HasField("final"):
            final = response.final
    assert partials >= 1 and final is not None
    words = [word for segment in final.segments for word in segment.words]
    assert plain(" ".join(word.text for word in words)) == plain(final.text)
    times = [time for word in words for time in (word.start_ms, word.end_ms)]
    assert times == sorted(times)
    assert final.start_ms <= times[0] and times[-1] <= final.end_ms


def config(**fields: Any) -> pb.RecognitionConfig:
    return pb.RecognitionConfig(**fields)


BAD = [
    (config(model="gpt-9"), NotFound, "config.model"),
    (config(language="de"), InvalidArgument, "config.language"),
    (config(language="!"), InvalidArgument, "config.language"),
    (config(task=pb.RECOGNITION_TASK_TRANSLATE), InvalidArgument, "config.task"),
    (config(prompt="x" * 1001), InvalidArgument, "config.prompt"),
    (config(temperature=1.5), InvalidArgument, "config.temperature"),
    (
        config(format=audio_pb2.AudioFormat(sample_rate_hz=7999)),
        InvalidArgument,
        "config.format.sample_rate_hz",
    ),
    (
        config(format=audio_pb2.AudioFormat(encoding=audio_pb2.AUDIO_ENCODING_MP3)),
        InvalidArgument,
        "config.format.encoding",
    ),
    (
        config(
            format=audio_pb2.AudioFormat(
                encoding=audio_pb2.AUDIO_ENCODING_PCMU, sample_rate_hz=16000
            )
        ),
        InvalidArgument,
        "config.format.sample_rate_hz",
    ),
    (
        config(turn_detection=pb.TurnDetection(threshold=1.1)),
        InvalidArgument,
        "config.turn_detection.threshold",
    ),
    (
        config(turn_detection=pb.TurnDetection(silence=Duration(nanos=1))),
        InvalidArgument,
        "config.turn_detection.silence",
    ),
    (
        config(turn_detection=pb.TurnDetection(prefix=Duration(seconds=6))),
        InvalidArgument,
        "config.turn_detection.prefix",
    ),
    (
        config(turn_detection=pb.TurnDetection(detector="ten")),
        InvalidArgument,
        "config.turn_detection.detector",
    ),
]


@pytest.mark.parametrize(("bad", "error", "field"), BAD, ids=[row[2] for row in BAD])
async def test_a_wrong_field_is_named(
    stub: Any, bad: pb.RecognitionConfig, error: type[AntiphonError], field: str
) -> None:
    with pytest.raises(error) as caught:
        await recognise(stub, [], bad)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("requests", "reason", "field"),
    [
        ([Request(config=pb.RecognitionConfig())], "STREAM_PROTOCOL", "config"),
        ([Request()], "STREAM_PROTOCOL", "message"),
        ([Request(audio=bytes((1 << 20) + 1))], "TOO_LARGE", "audio"),
        (
            [Request(turn_detection=pb.TurnDetection(threshold=-1))],
            "INVALID_VALUE",
            "turn_detection.threshold",
        ),
    ],
)
async def test_a_wrong_message_ends_the_stream(
    stub: Any, requests: list[Request], reason: str, field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await recognise(stub, requests)
    assert (caught.value.reason, caught.value.field) == (reason, field)


async def test_the_first_message_must_be_the_config(stub: Any) -> None:
    async def outgoing() -> Any:
        yield flush("early")

    call = stub.StreamingRecognize(outgoing())
    with pytest.raises(InvalidArgument) as caught:
        await read_all(call)
    assert caught.value.reason == "STREAM_PROTOCOL"


async def test_the_openai_names_resolve_to_the_default(stub: Any) -> None:
    listed = await stub.ListRecognizers(pb.ListRecognizersRequest())
    (recognizer,) = listed.recognizers
    assert set(recognizer.aliases) >= {"whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"}
    for name in [recognizer.id, *recognizer.aliases]:
        events = await recognise(stub, [], pb.RecognitionConfig(model=name, language="en-US"))
        assert events[0][1].model == recognizer.id


async def test_a_killed_worker_ends_streams_at_once_and_the_next_one_works(
    stub: Any, recognition_server: RecognitionServer
) -> None:
    killed_at = 0.0

    async def outgoing() -> Any:
        nonlocal killed_at
        yield Request(config=pb.RecognitionConfig())
        yield Request(audio=pcm16(speak(FOX)))
        await asyncio.sleep(0.2)
        killed_at = time.monotonic()
        os.kill(recognition_server.runtime.worker_pid or 0, signal.SIGKILL)
        await asyncio.sleep(30)

    shared = many.Caller(stub)
    await shared.send(*(many.act(name, start=many.QUIET) for name in "ab"))
    with pytest.raises(Unavailable) as caught:
        await read_all(stub.StreamingRecognize(outgoing()))
    assert time.monotonic() - killed_at < 15.0, "at once, not when the audio ends"
    assert caught.value.reason == "WORKER_DIED" and caught.value.retry_after
    await shared.read_until_ended("a", "b")
    assert [shared.heard[name][-1][1].reason for name in "ab"] == ["WORKER_DIED"] * 2
    limit = time.monotonic() + 60
    while True:
        try:
            await stub.ListRecognizers(pb.ListRecognizersRequest())
            break
        except grpc.aio.AioRpcError as error:
            assert from_rpc_error(error).reason == "WORKER_DIED" and time.monotonic() < limit
            await asyncio.sleep(0.3)
    events = await recognise(stub, audio_requests(pcm16(speak(FOX))))
    assert of(events, "final")[0].text
    shared.heard.clear()
    await shared.send(many.act("a", start=many.QUIET), many.end("a"))
    await shared.read_until_ended("a")
    assert shared.last("a") == "finished"
    shared.call.cancel()


async def test_a_cancelled_call_frees_its_stream(
    stub: Any, recognition_server: RecognitionServer
) -> None:
    async def outgoing() -> Any:
        yield Request(config=pb.RecognitionConfig())
        yield Request(audio=pcm16(speak(FOX)))
        await asyncio.sleep(30)

    call = stub.StreamingRecognize(outgoing())
    assert (await call.read()).HasField("ready")
    await until(lambda: recognition_server.runtime.gauges()["recognition_streams"] == 1)
    call.cancel()
    await until(lambda: not recognition_server.runtime.gauges()["recognition_streams"])
