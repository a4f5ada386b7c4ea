"""The contract of StreamSpeech over a scripted voice: states, order, cuts, limits, cancels."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon.vocoder.v1.vocoder_service_pb2_grpc import VocoderServiceStub
from antiphon_core.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unimplemented,
)
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.streams import messages, open_stream, result
from speech_bench import CLEAR, FLUSH, SpeechBench, Spoken, ToneVoice, config, running, text
from support.waiting import until
from support.wire import Wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = (
    "Hello there, my old friend, how are you today? It costs 4,000.50 dollars, says Dr. Smith. "
    "😀😀. The end comes at 5 p.m. and nobody knows"
)


def check_order(spoken: Spoken, length: int) -> None:
    assert spoken.kinds[0] == "ready"
    assert spoken.kinds[-1] == "finished"
    assert spoken.kinds.count("ready") == spoken.kinds.count("finished") == 1
    position = 0
    for message in spoken.messages:
        assert message.ByteSize() <= 64 * 1024
        if message.HasField("audio"):
            assert message.audio.first_sample == position
            position += message.audio.sample_count
    assert position == spoken.finished.sample_count == len(spoken.samples)
    offsets, samples = zip(*spoken.marks, strict=True) if spoken.marks else ((), ())
    assert list(offsets) == sorted(offsets)
    assert list(samples) == sorted(samples)
    if length:
        assert spoken.marks[-1] == (length, position)


async def test_order_marks_and_counts(bench: SpeechBench) -> None:
    spoken = await bench.say(TEXT)
    check_order(spoken, len(TEXT))
    assert spoken.finished.input_units == len(TEXT)
    assert spoken.finished.reason == pb.SPEECH_FINISH_REASON_COMPLETE
    assert spoken.ready.voice == "joe"
    assert spoken.ready.model == "piper"
    assert spoken.ready.output_format.sample_rate_hz == 22050
    assert len(spoken.marks) >= 4
    assert 0 < spoken.finished.time_to_first_audio.ToSeconds() + 1 <= 3
    # Sentences are 200 ms apart, clauses 80 ms.
    quiet = np.abs(spoken.samples) < 10
    assert quiet[-int(0.2 * 22050) :].all()


async def test_any_cut_of_the_text_gives_the_same_bytes(bench: SpeechBench) -> None:
    whole = await bench.say(TEXT)
    generator = random.Random(3)
    for _ in range(6):
        cuts = sorted(generator.randint(0, len(TEXT)) for _ in range(9))
        pieces = [TEXT[a:b] for a, b in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
        again = await bench.say(TEXT, pieces=pieces)
        assert again.data == whole.data
        assert again.marks == whole.marks
    letters = await bench.say(TEXT, pieces=list(TEXT))
    assert (letters.data, letters.marks) == (whole.data, whole.marks)


async def test_no_input_and_no_speech(bench: SpeechBench) -> None:
    empty = await bench.send([config()])
    assert empty.kinds == ["ready", "finished"]
    assert empty.finished.sample_count == 0
    for silent in ("   \n ", "😀 ...", ""):
        spoken = await bench.say(silent)
        assert "audio" not in spoken.kinds
        assert spoken.finished.input_units == len(silent)
        assert [offset for offset, _ in spoken.marks] == ([len(silent)] if silent else [])


Requests = list[pb.StreamSpeechRequest]
CODES = pb.StreamSpeechRequest(codes={"codes": [1], "codebook_count": 1, "frame_rate": 12.5})
UNSET = pb.StreamSpeechRequest()


@pytest.mark.parametrize(
    ("requests", "field", "reason"),
    [
        ([], "config", "MISSING_FIELD"),
        ([text("hi")], "text", "STREAM_PROTOCOL"),
        ([FLUSH], "flush", "STREAM_PROTOCOL"),
        ([UNSET], "message", "STREAM_PROTOCOL"),
        ([CODES], "codes", "STREAM_PROTOCOL"),
        ([config(), config()], "config", "STREAM_PROTOCOL"),
        ([config(), text("Hello."), config()], "config", "STREAM_PROTOCOL"),
        ([config(), CODES], "codes", "STREAM_PROTOCOL"),
        ([config(), text("Hello."), FLUSH, CODES], "codes", "STREAM_PROTOCOL"),
        ([config(), UNSET], "message", "STREAM_PROTOCOL"),
        ([config(), text("a" * 65537)], "text", "TOO_LARGE"),
        ([config(speed=9)], "config.speed", "INVALID_VALUE"),
        ([config(chunking=99)], "config.chunking", "INVALID_VALUE"),
        ([config(input_kind=99)], "config.input_kind", "INVALID_VALUE"),
        ([config(unknown_voice=99)], "config.unknown_voice", "INVALID_VALUE"),
        (
            [config(output_format={"encoding": 99})],
            "config.output_format.encoding",
            "INVALID_VALUE",
        ),
        (
            [config(output_format={"sample_rate_hz": 1})],
            "config.output_format.sample_rate_hz",
            "INVALID_VALUE",
        ),
    ],
)
async def test_messages_out_of_place(
    bench: SpeechBench, requests: Requests, field: str, reason: str
) -> None:
    with pytest.raises(InvalidArgument) as error:
        await bench.send(requests)
    assert (error.value.field, error.value.reason) == (field, reason)
    await bench.until_idle()


async def test_refused_configurations(bench: SpeechBench) -> None:
    with pytest.raises(NotFound) as unknown:
        await bench.say("hi", voice="shimer")
    assert unknown.value.reason == "VOICE_NOT_FOUND"
    assert "shimmer" in unknown.value.metadata["allowed"]
    with pytest.raises(Unimplemented) as codes:
        await bench.send([config(input_kind=pb.SPEECH_INPUT_KIND_CODES)])
    assert (codes.value.reason, codes.value.field) == ("UNSUPPORTED", "config.code_format.codec")
    assert "[vocoder] codecs" in codes.value.message
    fallback = await bench.say(
        "Hi.", voice="shimer", unknown_voice=pb.UNKNOWN_VOICE_DEFAULT, noise_key=1
    )
    assert fallback.ready.voice_fallback


async def test_first_clause_is_spoken_while_text_still_comes(bench: SpeechBench) -> None:
    async with open_stream(bench.stub.StreamSpeech()) as call:
        await call.write(config())
        await call.write(text("Hello there, my old friend, "))
        spoken = Spoken()
        async for message in messages(call):
            spoken.add(message)
            if message.HasField("mark"):
                break
        assert spoken.marks == [(27, len(spoken.samples))]
        await call.write(text("how are you?"))
        await call.done_writing()
        async for message in messages(call):
            spoken.add(message)
    check_order(spoken, 40)


async def test_flush_speaks_what_is_buffered(bench: SpeechBench) -> None:
    async with open_stream(bench.stub.StreamSpeech()) as call:
        await call.write(config())
        await call.write(text("Short"))
        await call.write(FLUSH)
        spoken = Spoken()
        async for message in messages(call):
            spoken.add(message)
            if message.HasField("mark"):
                break
        assert spoken.marks[0][0] == 5
        await call.done_writing()
        async for message in messages(call):
            spoken.add(message)
    assert spoken.finished.input_units == 5


async def test_clear_drops_what_was_not_spoken(bench: SpeechBench, voice: ToneVoice) -> None:
    cleared = await bench.send([config(), text("This is never heard"), CLEAR, text("Kept.")])
    alone = await bench.say("Kept.")
    assert cleared.data == alone.data
    assert cleared.finished.input_units == 5
    assert cleared.marks[-1][0] == 24
    # Clauses that the model process holds are dropped too; the stream stays usable.
    voice.hop_seconds = 0.02
    long = "This is a sentence of some length. " * 40
    shortened = await bench.send([config(), text(long), CLEAR, text("Kept.")])
    assert len(shortened.data) < 0.2 * 40 * len(alone.data)
    assert shortened.data.endswith(alone.data)


async def test_idle_stream_ends_typed_after_progress(bench: SpeechBench) -> None:
    spoken = Spoken()
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded) as error:
        async with open_stream(bench.stub.StreamSpeech()) as call:
            await call.write(config())
            async for message in messages(call):
                spoken.add(message)
    assert error.value.reason == "INPUT_IDLE"
    assert time.monotonic() - started > 0.5
    assert spoken.kinds[:2] == ["ready", "progress"]
    await bench.until_idle()


async def test_no_configuration_at_all_ends_typed(bench: SpeechBench) -> None:
    with pytest.raises(DeadlineExceeded) as error:
        async with open_stream(bench.stub.StreamSpeech()) as call:
            async for _ in messages(call):
                pass
    assert error.value.field == "config"


async def hold_slots(bench: SpeechBench, count: int) -> list[Any]:
    calls = [bench.stub.StreamSpeech() for _ in range(count)]
    for call in calls:
        await call.write(config())
    await asyncio.gather(*(call.read() for call in calls))
    return calls


async def test_slots_queue_and_refusal(voice: ToneVoice) -> None:
    async with running(voice, slots=2, queue_limit=1) as bench:
        held = await hold_slots(bench, 2)
        waiting = asyncio.create_task(bench.say("Hello."))
        while bench.runtime.slots.queued == 0:
            await asyncio.sleep(0.005)
        slots = await result(bench.stub.GetSlots(pb.GetSlotsRequest()))
        assert (slots.total, slots.busy, slots.queued) == (2, 2, 1)
        assert slots.cost["piper"] > 0
        with pytest.raises(ResourceExhausted) as full:
            await bench.say("Hello.")
        assert full.value.reason == "QUEUE_FULL"
        assert full.value.retry_after is not None
        held[0].cancel()
        spoken = await waiting
        assert spoken.ready.queue_wait.ToMicroseconds() > 0
        held[1].cancel()
        await bench.until_idle()


async def test_deadline_counts_the_queue_and_leaves_it(voice: ToneVoice) -> None:
    async with running(voice, slots=1, queue_limit=4) as bench:
        held = await hold_slots(bench, 1)
        with pytest.raises(DeadlineExceeded):
            async with open_stream(
                bench.stub.StreamSpeech(iter([config(), text("Hi.")]), timeout=0.2)
            ) as call:
                async for _ in messages(call):
                    pass
        await until(lambda: bench.runtime.slots.queued == 0)
        held[0].cancel()
        await bench.until_idle()
        await bench.say("Hello.")


@pytest.mark.parametrize("rounds", [10, pytest.param(100, marks=pytest.mark.slow)])
async def test_random_cancels_leave_nothing_and_change_nobody(
    voice: ToneVoice, rounds: int
) -> None:
    voice.hop_seconds = 0.001
    generator = random.Random(7)
    async with running(voice, slots=4, queue_limit=200) as bench:
        expected = (await bench.say(TEXT)).data

        async def cancelled() -> None:
            async with open_stream(bench.stub.StreamSpeech(iter([config(), text(TEXT)]))) as call:
                for _ in range(generator.randint(0, 4)):
                    await call.read()

        async def kept() -> None:
            assert (await bench.say(TEXT)).data == expected

        for _ in range(rounds):
            jobs: list[Callable[[], Any]] = [cancelled] * 10 + [kept] * 2
            generator.shuffle(jobs)
            await asyncio.gather(*(job() for job in jobs))
        await bench.until_idle()
        assert bench.runtime.slots.queued == 0
        # A reused slot is a fresh one.
        assert (await bench.say(TEXT)).data == expected


async def test_cancel_reaches_the_model_within_a_hop(voice: ToneVoice) -> None:
    voice.hop_seconds = 0.02
    async with running(voice, slots=1) as bench:
        async with open_stream(bench.stub.StreamSpeech(iter([config(), text(TEXT * 20)]))) as call:
            while True:
                message = await call.read()
                if message.HasField("audio"):
                    break
        await bench.until_idle()
        hops = voice.hops
        # The one that ran, and one whose message crossed the cancel's.
        assert await still_hops(voice) <= hops + 2


async def test_a_client_that_is_cut_off_frees_its_slots(
    bench: SpeechBench, voice: ToneVoice
) -> None:
    """A reset connection, as a killed client leaves it: speaking, waiting for text, and queued."""
    voice.hop_seconds = 0.02
    expected = (await bench.say("Kept.")).data
    wire = Wire(bench.port)
    async with open_channel(f"127.0.0.1:{await wire.start()}") as channel:
        calls = [VocoderServiceStub(channel).StreamSpeech() for _ in range(5)]
        for call in calls:
            await call.write(config())
        for call in calls[:2]:
            await call.write(text(TEXT * 20))
        await until(lambda: (bench.runtime.slots.busy, bench.runtime.slots.queued) == (4, 1))
        await wire.cut()
        await until(lambda: bench.runtime.slots.busy == bench.runtime.slots.queued == 0)
    await bench.until_idle()
    assert (await bench.say("Kept.")).data == expected


async def still_hops(voice: ToneVoice) -> int:
    """Hops so far, once no further one was run for 0.3 s."""
    while True:
        hops = voice.hops
        await asyncio.sleep(0.3)
        if voice.hops == hops:
            return hops


async def test_slow_reader_stops_its_own_stream_only(voice: ToneVoice) -> None:
    long = "This is a sentence of some length, that goes on. " * 120
    async with running(voice, slots=2, lead_s=3.0) as bench:
        async with open_stream(bench.stub.StreamSpeech(iter([config(), text(long)]))) as slow:
            await slow.read()
            stalled = await still_hops(voice)
            other = await bench.say("Hello there.")
            assert other.kinds[-1] == "finished"
            assert await still_hops(voice) - stalled < 20
            spoken = Spoken()
            while (message := await slow.read()) is not grpc.aio.EOF:
                spoken.add(message)
        # It stood still long before its end, and nothing was dropped meanwhile.
        assert voice.hops > 2 * stalled
        assert spoken.finished.input_units == len(long)
        assert len(spoken.samples) == spoken.finished.sample_count


async def test_failed_hop_ends_its_stream_alone(bench: SpeechBench, voice: ToneVoice) -> None:
    voice.fail = True
    with pytest.raises(Internal):
        await bench.say("Hello.")
    voice.fail = False
    check_order(await bench.say("Hello."), 6)
    await bench.until_idle()
