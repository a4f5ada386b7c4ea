"""Codes that a language model writes become audio: Generate, gateway, StreamSpeech."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import httpx
import numpy as np
import openai
import psutil
import pytest
from antiphon.llm.v1 import generate_pb2, llm_service_pb2
from antiphon_core.errors import InvalidArgument
from antiphon_core.rpc.streams import read_all, result
from antiphon_gateway.domain.speech import (
    CodeFormat,
    SpeechConfig,
    SpeechFinished,
    SpeechMark,
)
from omni_bench import AUDIO, OmniBench, body, chat_generation, samples_of
from support.speech_model import (
    CODEBOOKS,
    FIRST_CODE,
    FRAME_RATE,
    FRAME_SAMPLES,
    OUTPUT,
    SIZE,
    START,
    STOP,
    VOCABULARY,
    WORDS,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEED = {"seed": 7}
LIMIT = 96
CANCEL_S = 0.25


def sampling() -> generate_pb2.SamplingParams:
    return generate_pb2.SamplingParams(seed=SEED["seed"])


def generation(modalities=AUDIO, **fields) -> generate_pb2.GenerateRequest:
    return chat_generation(
        sampling=fields.pop("sampling", sampling()),
        stop=generate_pb2.StopParams(max_tokens=LIMIT, ignore_eos=True),
        output=generate_pb2.OutputParams(token_ids=True, modalities=modalities),
        **fields,
    )


async def spoken(omni: OmniBench) -> tuple[str, list[int]]:
    """Text and codes of the answer that every test asks for."""
    deltas = [
        r.delta for r in await read_all(omni.llm.Generate(generation())) if r.HasField("delta")
    ]
    return "".join(d.text for d in deltas), [c for d in deltas for c in d.codes.codes]


async def test_tokens_become_text_and_whole_frames(omni: OmniBench) -> None:
    responses = await read_all(omni.llm.Generate(generation()))
    deltas = [r.delta for r in responses if r.HasField("delta")]
    ids = [token for delta in deltas for token in delta.token_ids]
    tokens = [token - FIRST_CODE for token in ids if token >= FIRST_CODE]
    codes = [code for delta in deltas for code in delta.codes.codes]
    whole = len(tokens) - len(tokens) % CODEBOOKS
    assert whole > 12 * CODEBOOKS
    assert codes == [token % SIZE for token in tokens[:whole]]
    assert [token // SIZE for token in tokens[:CODEBOOKS]] == list(range(CODEBOOKS))
    assert len(set(codes)) > 20
    for delta in deltas:
        if delta.HasField("codes"):
            assert delta.codes.codebook_count == CODEBOOKS
            assert delta.codes.frame_rate == FRAME_RATE
            assert len(delta.codes.codes) % CODEBOOKS == 0
    text = "".join(delta.text for delta in deltas)
    assert text.split() and set(text.split()) <= set(WORDS)
    usage = responses[-1].completed.usage
    assert (usage.output_tokens, usage.audio_tokens) == (LIMIT, len(tokens))
    assert sum(delta.token_count for delta in deltas) == LIMIT


async def test_the_model_tells_what_it_writes(omni: OmniBench) -> None:
    models = await result(omni.llm.ListModels(llm_service_pb2.ListModelsRequest()))
    model = models.models[0]
    assert tuple(model.output_modalities) == AUDIO
    assert model.code_format.codec == OUTPUT["codec"]
    assert (model.code_format.codebook_count, model.code_format.frame_rate) == (CODEBOOKS, 12.5)


async def test_a_text_only_reply_holds_no_speech(omni: OmniBench) -> None:
    hot = generate_pb2.SamplingParams(temperature=20.0, seed=1)
    request = generation((), sampling=hot, choice_count=2)
    responses = await read_all(omni.llm.Generate(request))
    ids = {i for r in responses if r.HasField("delta") for i in r.delta.token_ids}
    assert ids
    assert not ids & {START, STOP, *range(FIRST_CODE, VOCABULARY)}
    assert not responses[-1].completed.usage.HasField("audio_tokens")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"constraint": generate_pb2.Constraint(regex="a+")}, "constraint"),
        (
            {
                "modalities": (),
                "sampling": generate_pb2.SamplingParams(allowed_token_ids=[FIRST_CODE, START]),
            },
            "sampling.allowed_token_ids",
        ),
        ({"modalities": [generate_pb2.MODALITY_IMAGE]}, "output.modalities[0]"),
    ],
)
async def test_what_cannot_be_spoken_is_refused(omni: OmniBench, fields, field: str) -> None:
    request = generation(**fields)
    request.stop.ignore_eos = False
    with pytest.raises(InvalidArgument) as caught:
        await read_all(omni.llm.Generate(request))
    assert caught.value.field == field


async def test_marks_are_monotone_and_end_at_the_last_frame(omni: OmniBench) -> None:
    _, codes = await spoken(omni)
    form = CodeFormat(OUTPUT["codec"], CODEBOOKS, FRAME_RATE)
    async with omni.backends.vocoder.stream(SpeechConfig(code_format=form)) as stream:
        for start in range(0, len(codes), 3 * CODEBOOKS):
            await stream.send_codes(codes[start : start + 3 * CODEBOOKS])
        await stream.end_input()
        events = [event async for event in stream]
    marks = [(e.input_offset, e.sample) for e in events if isinstance(e, SpeechMark)]
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(marks))
    frames = len(codes) // CODEBOOKS
    assert marks[-1] == (frames, frames * FRAME_SAMPLES)
    assert all(sample == frame * FRAME_SAMPLES for frame, sample in marks)
    assert isinstance(events[-1], SpeechFinished) and events[-1].input_units == frames


async def test_the_sdk_hears_the_exact_samples(omni: OmniBench) -> None:
    text, codes = await spoken(omni)
    async with openai.AsyncOpenAI(base_url=f"{omni.url}/v1", api_key="none") as client:
        whole = await client.chat.completions.create(**body(max_tokens=LIMIT, **SEED))
        stream = await client.chat.completions.create(
            **body(max_tokens=LIMIT, **SEED), stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    message = whole.choices[0].message
    assert message.content is None and message.audio is not None
    assert message.audio.transcript == text
    heard = samples_of([message.audio.data])
    assert len(heard) == len(codes) // CODEBOOKS * FRAME_SAMPLES
    np.testing.assert_allclose(heard, omni.decoded(codes), atol=1.5)
    deltas = [chunk.choices[0].delta.model_dump(exclude_unset=True) for chunk in chunks[:-1]]
    pieces = [delta["audio"] for delta in deltas if "audio" in delta]
    assert "".join(piece.get("transcript", "") for piece in pieces) == text
    data = [piece["data"] for piece in pieces if "data" in piece]
    assert np.array_equal(samples_of(data), heard)
    assert "id" in pieces[-1]
    assert whole.usage and whole.usage.completion_tokens_details
    assert whole.usage.completion_tokens_details.audio_tokens
    assert chunks[-1].usage == whole.usage


async def test_equal_seeds_give_equal_bytes_in_company_and_other_seeds_do_not(
    omni: OmniBench,
) -> None:
    """The seed is the key of the draws: nothing random is shared by rows or slots."""
    seeds = [7, 1, 7, 7, 2, 7, 3, 7]
    answers = await asyncio.gather(*(omni.chat(max_tokens=48, seed=seed) for seed in seeds))
    heard: dict[int, set[str]] = {seed: set() for seed in seeds}
    for seed, answer in zip(seeds, answers, strict=True):
        heard[seed].add(answer.json()["choices"][0]["message"]["audio"]["data"])
    assert [len(heard[seed]) for seed in (7, 1, 2, 3)] == [1] * 4
    assert len(set.union(*heard.values())) == 4


async def test_formats_choices_and_the_note(omni: OmniBench) -> None:
    audio = {"voice": "nobody", "format": "wav"}
    response = await omni.chat(audio=audio, n=2, max_tokens=60, **SEED)
    assert response.status_code == 200, response.text
    assert "voice of its own" in response.headers["x-antiphon-notes"]
    answers = [choice["message"]["audio"] for choice in response.json()["choices"]]
    assert len({answer["data"] for answer in answers}) == 2
    plain = await omni.chat(modalities=["text"], audio=None, max_tokens=20)
    assert set(plain.json()["choices"][0]["message"]["content"].split()) <= set(WORDS)


async def test_it_speaks_for_the_speech_route(omni: OmniBench) -> None:
    """The model never ends by itself: its reader leaves behind three seconds."""
    fields = {"model": "talker", "voice": "alloy", "input": "red sky", "response_format": "pcm"}
    heard = b""
    async with httpx.AsyncClient(base_url=omni.url, timeout=60) as http:
        async with http.stream("POST", "/v1/audio/speech", json=fields) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("audio/pcm")
            assert "voice of its own" in response.headers["x-antiphon-notes"]
            async for data in response.aiter_bytes():
                heard += data
                if len(heard) >= 2 * 40 * FRAME_SAMPLES:
                    break
    frames = np.frombuffer(heard[: 2 * 40 * FRAME_SAMPLES], "<i2").reshape(40, FRAME_SAMPLES)
    assert np.abs(frames).max(1).min() > 0 and len(np.unique(frames, axis=0)) == 40
    for _ in range(300):
        if not await omni.held():
            break
        await asyncio.sleep(0.05)
    assert not await omni.held()


async def test_a_slow_reader_loses_nothing(omni: OmniBench) -> None:
    fields = body(max_tokens=500, stream=True, **SEED)
    pieces: list[str] = []
    async with httpx.AsyncClient(base_url=omni.url, timeout=60) as http:
        async with http.stream("POST", "/v1/chat/completions", json=fields) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line[6:])["choices"]
                    audio = choices[0]["delta"].get("audio", {}) if choices else {}
                    pieces += [audio["data"]] if "data" in audio else []
                    if len(pieces) in (1, 4, 9):
                        await asyncio.sleep(0.3)
    frames = len(samples_of(pieces)) / FRAME_SAMPLES
    request = generation()
    request.stop.max_tokens, request.stop.ignore_eos = 500, False
    responses = await read_all(omni.llm.Generate(request))
    sent = sum(len(r.delta.codes.codes) for r in responses if r.HasField("delta"))
    assert frames == sent / CODEBOOKS > 90


async def freed_after(omni: OmniBench) -> float:
    """Leaves inside an answer; seconds until both services are free."""
    fields = body(max_tokens=16_000, stream=True)
    async with httpx.AsyncClient(base_url=omni.url, timeout=60) as http:
        async with http.stream("POST", "/v1/chat/completions", json=fields) as response:
            async for line in response.aiter_lines():
                if '"data"' in line:
                    assert await omni.held() == 2
                    break
    started = asyncio.get_running_loop().time()
    while await omni.held():
        await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - started < 15
    return asyncio.get_running_loop().time() - started


async def test_a_reader_that_leaves_frees_both(omni: OmniBench) -> None:
    """The best of three: other work on the machine only makes it slower."""
    assert min([await freed_after(omni) for _ in range(3)]) <= CANCEL_S


async def test_the_codec_s_death_is_one_error(omni: OmniBench) -> None:
    """Last: the codec process comes back, but later than the next test would ask."""
    fields = body(max_tokens=16_000, stream=True)
    (codec,) = [
        child
        for child in psutil.Process(omni.vocoder_pid).children(recursive=True)
        if any("codec" in part for part in child.cmdline()[:4])
    ]
    lines = []
    async with httpx.AsyncClient(base_url=omni.url, timeout=60) as http:
        async with http.stream("POST", "/v1/chat/completions", json=fields) as response:
            async for line in response.aiter_lines():
                if '"data"' in line and codec.is_running():
                    codec.kill()
                lines.append(line)
    events = [line for line in lines if line.startswith("data: ")]
    errors = [line for line in events if '"error"' in line]
    assert errors == events[-1:]
    assert json.loads(errors[0][6:])["error"]["code"] == "bad_gateway"
    for _ in range(300):
        if not await omni.held():
            break
        await asyncio.sleep(0.05)
    assert not await omni.held()
