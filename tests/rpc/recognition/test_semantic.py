"""Judged turns on the real detector, recogniser and judge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon_core.errors import InvalidArgument
from antiphon_core.rpc.streams import read_all
from google.protobuf.duration_pb2 import Duration

from tests.rpc.recognition.live import Request, audio_requests, of, plain, recognise
from tests.unit.recognition.piper_speech import SENTENCES, pcm16, silence, speak

SEMANTIC = pb.TurnDetection.MODE_SEMANTIC
HESITATION = np.concatenate(
    [
        silence(0.4),
        speak("We would like to book a table for")[:-1500],
        silence(0.7),
        speak("four people tomorrow evening."),
        silence(4.5),
    ]
)


def turns(**fields: Any) -> pb.RecognitionConfig:
    return pb.RecognitionConfig(turn_detection=pb.TurnDetection(**fields))


async def test_a_hesitation_is_one_turn_for_the_judge_and_two_for_the_silence(stub: Any) -> None:
    requests = audio_requests(pcm16(HESITATION), 3200)
    plain_events = await recognise(stub, requests, turns(silence=Duration(nanos=400_000_000)))
    assert len(of(plain_events, "speech_started")) == 2
    events = await recognise(stub, requests, turns(mode=SEMANTIC))
    assert of(events, "ready")[0].turn_judge == "phrase"
    assert len(of(events, "speech_started")) == len(of(events, "speech_stopped")) == 1
    (final,) = of(events, "final")
    assert "table" in plain(final.text) and plain(final.text).endswith("evening")
    assert of(events, "speech_stopped")[0].HasField("end_probability")


async def test_events_of_judged_turns_do_not_depend_on_the_cut(stub: Any) -> None:
    audio = pcm16(np.concatenate([HESITATION, speak(SENTENCES[1]), silence(4.5)]))

    async def run(size: int) -> list[tuple[str, int, float]]:
        events = await recognise(stub, audio_requests(audio, size), turns(mode=SEMANTIC))
        return [
            (kind, message.at_ms, getattr(message, "end_probability", 0.0))
            for kind, message in events
            if kind in ("speech_started", "speech_stopped")
        ]

    assert await run(1 << 20) == await run(3_001)


async def test_the_longest_silence_ends_a_turn_that_the_judge_keeps_open(stub: Any) -> None:
    audio = np.concatenate(
        [silence(0.4), speak("We would like to book a table for")[:-1500], silence(1.5)]
    )
    config = turns(
        mode=SEMANTIC,
        eagerness=pb.TurnDetection.EAGERNESS_LOW,
        max_silence=Duration(nanos=900_000_000),
    )
    events = await recognise(stub, audio_requests(pcm16(audio)), config)
    (stop,) = of(events, "speech_stopped")
    assert stop.forced and stop.end_probability < 0.4


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"eagerness": 1}, "config.turn_detection.mode"),
        ({"max_silence": Duration(seconds=1)}, "config.turn_detection.mode"),
        ({"mode": SEMANTIC, "eagerness": 9}, "config.turn_detection.eagerness"),
        (
            {"mode": SEMANTIC, "max_silence": Duration(nanos=150_000_000)},
            "config.turn_detection.max_silence",
        ),
        (
            {"mode": SEMANTIC, "max_silence": Duration(seconds=31)},
            "config.turn_detection.max_silence",
        ),
    ],
)
async def test_a_wrong_field_of_a_judged_turn_is_named(
    stub: Any, fields: dict[str, Any], name: str
) -> None:
    async def outgoing():
        yield Request(config=turns(**fields))

    with pytest.raises(InvalidArgument) as caught:
        await read_all(stub.StreamingRecognize(outgoing()))
    assert caught.value.metadata["field"] == name
