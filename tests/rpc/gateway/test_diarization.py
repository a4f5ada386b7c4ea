"""Who speaks: diarized_json through the official SDK, known speakers, and what is refused."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import httpx
import openai
import pytest
import pytest_asyncio
from antiphon_core.errors import InvalidArgument
from antiphon_gateway.openai.audio import MAX_REFERENCE_BYTES
from fake_backends import RecognitionScript
from gateway_bench import GatewayBench

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILE = ("speech.wav", b"RIFF" + bytes(1000), "audio/wav")
MODEL = "gpt-4o-transcribe-diarize"
NAMES, REFERENCES = "known_speaker_names[]", "known_speaker_references[]"


def data_url(data: bytes, media_type: str = "audio/wav") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


SAMPLE = data_url(b"RIFF1234")


@pytest_asyncio.fixture(loop_scope="module")
async def client(bench: GatewayBench) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{bench.url}/v1", api_key="none", max_retries=0
    ) as made:
        yield made


async def diarize(bench: GatewayBench, **fields: object) -> httpx.Response:
    data = {"model": MODEL, "response_format": "diarized_json", **fields}
    return await bench.http.post("/v1/audio/transcriptions", data=data, files={"file": FILE})


async def test_segments_say_who_speaks(client: openai.AsyncOpenAI) -> None:
    made = await client.audio.transcriptions.create(
        model=MODEL,
        file=FILE,
        response_format="diarized_json",
        chunking_strategy="auto",
        prompt="Names.",
    )
    assert made.to_dict() == {
        "task": "transcribe",
        "duration": 2.5,
        "text": "Hello there. Bye.",
        "segments": [
            {
                "type": "transcript.text.segment",
                "id": "seg_001",
                "start": 0.0,
                "end": 1.25,
                "text": "Hello there.",
                "speaker": "A",
            },
            {
                "type": "transcript.text.segment",
                "id": "seg_002",
                "start": 1.25,
                "end": 2.5,
                "text": "Bye.",
                "speaker": "B",
            },
        ],
        "usage": {"type": "duration", "seconds": 2.5},
    }


async def test_a_stream_holds_the_segments_of_the_whole_answer(
    bench: GatewayBench, client: openai.AsyncOpenAI
) -> None:
    bench.fakes.recognition.script = RecognitionScript(
        segments=((" ", 0, 100), (" Hello there.", 100, 1250), (" Bye.", 1250, 2500)),
        speakers=("", "A", ""),
    )
    asked = {"model": MODEL, "file": FILE, "response_format": "diarized_json"}
    whole = await client.audio.transcriptions.create(**asked)
    events = [e async for e in await client.audio.transcriptions.create(**asked, stream=True)]
    deltas = [event for event in events if event.type == "transcript.text.delta"]
    segments = [event for event in events if event.type == "transcript.text.segment"]
    assert [s.to_dict() for s in segments] == [s.to_dict() for s in whole.segments]
    assert [segment.speaker for segment in segments] == ["A", ""]
    assert [delta.segment_id for delta in deltas] == [segment.id for segment in segments]
    assert events.index(deltas[1]) > events.index(segments[0])
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == "".join(delta.delta for delta in deltas) == whole.text


async def test_known_speakers_reach_the_recogniser_and_label_their_segments(
    bench: GatewayBench, client: openai.AsyncOpenAI
) -> None:
    samples = [bytes(range(256)) * (MAX_REFERENCE_BYTES // 256), b"ID3"]
    made = await client.audio.transcriptions.create(
        model=MODEL,
        file=FILE,
        response_format="diarized_json",
        known_speaker_names=["agent", "Ann"],
        known_speaker_references=[
            data_url(samples[0]),
            data_url(samples[1], "audio/webm;codecs=opus"),
        ],
    )
    assert [segment.speaker for segment in made.segments] == ["agent", "Ann"]
    known = bench.fakes.recognition.calls.requests[-1].diarization.known_speakers
    assert [(speaker.name, speaker.audio) for speaker in known] == [
        ("agent", samples[0]),
        ("Ann", samples[1]),
    ]


async def test_other_formats_do_not_ask_who_speaks(bench: GatewayBench) -> None:
    assert (await diarize(bench, response_format="json")).json()["text"] == "Hello there. Bye."
    assert not bench.fakes.recognition.calls.requests[-1].HasField("diarization")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({NAMES: "a"}, "known_speaker_references", "missing_required_parameter"),
        ({REFERENCES: SAMPLE}, "known_speaker_names", "missing_required_parameter"),
        ({NAMES: ["a", "b"], REFERENCES: SAMPLE}, "known_speaker_references", "invalid_value"),
        ({NAMES: list("abcde"), REFERENCES: [SAMPLE] * 5}, "known_speaker_names", "invalid_value"),
        ({NAMES: ["a", "a"], REFERENCES: [SAMPLE] * 2}, "known_speaker_names[1]", "invalid_value"),
        ({NAMES: ["a", " "], REFERENCES: [SAMPLE] * 2}, "known_speaker_names[1]", "invalid_value"),
        ({NAMES: "a" * 65, REFERENCES: SAMPLE}, "known_speaker_names[0]", "invalid_value"),
        (
            {NAMES: ["a", "b"], REFERENCES: [SAMPLE, "https://example.org/b.wav"]},
            "known_speaker_references[1]",
            "unsupported_parameter",
        ),
        (
            {NAMES: "a", REFERENCES: "data:audio/wav;base64,UklG*"},
            "known_speaker_references[0]",
            "invalid_audio",
        ),
        (
            {NAMES: "a", REFERENCES: "data:audio/wav;base64,UklGé"},
            "known_speaker_references[0]",
            "invalid_audio",
        ),
        ({NAMES: "a", REFERENCES: data_url(b"")}, "known_speaker_references[0]", "invalid_audio"),
        (
            {NAMES: "a", REFERENCES: SAMPLE, "response_format": "json"},
            "known_speaker_names",
            "invalid_value",
        ),
        ({"include[]": "logprobs"}, "include", "invalid_value"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities", "invalid_value"),
    ],
)
async def test_refusals(bench: GatewayBench, fields: dict, param: str, code: str) -> None:
    before = len(bench.fakes.recognition.calls.requests)
    response = await diarize(bench, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)
    assert len(bench.fakes.recognition.calls.requests) == before


@pytest.mark.parametrize("excess", [1, 2000], ids=["decoded", "unread"])
async def test_a_sample_that_is_too_large_is_not_passed_on(
    bench: GatewayBench, excess: int
) -> None:
    sample = data_url(bytes(MAX_REFERENCE_BYTES + excess))
    response = await diarize(bench, **{NAMES: "a", REFERENCES: sample})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (413, "request_too_large")
    assert error["param"].startswith("known_speaker_references[")


async def test_what_the_recogniser_finds_wrong_has_the_forms_names(bench: GatewayBench) -> None:
    bench.fakes.recognition.script = RecognitionScript(
        fail_before=InvalidArgument(
            "holds 1.5 s; 2 to 10 s are needed",
            reason="INVALID_AUDIO",
            field="config.diarization.known_speakers[0].audio",
        )
    )
    error = (await diarize(bench, **{NAMES: "a", REFERENCES: SAMPLE})).json()["error"]
    assert (error["param"], error["code"]) == ("known_speaker_references[0]", "invalid_audio")


async def test_translations_do_not_say_who_speaks(bench: GatewayBench) -> None:
    data = {"model": MODEL, "response_format": "diarized_json"}
    response = await bench.http.post("/v1/audio/translations", data=data, files={"file": FILE})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "response_format")


async def test_a_recogniser_that_cannot_tell_says_so() -> None:
    bench = GatewayBench()
    bench.fakes.recognition.diarizes = False
    await bench.start()
    try:
        # With the name before the file, after it, and with the default.
        names_last = [("file", FILE), ("model", (None, MODEL))]
        parts = [("response_format", (None, "diarized_json")), *names_last]
        last = await bench.http.post("/v1/audio/transcriptions", files=parts)
        for response in (await diarize(bench), await diarize(bench, model=""), last):
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (400, "unsupported_parameter")
            assert error["param"] == "response_format" and "who speaks" in error["message"]
        assert (await diarize(bench, response_format="json")).status_code == 200
    finally:
        await bench.stop()
