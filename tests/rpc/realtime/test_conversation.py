"""Spoken conversations over a real socket and real gRPC with scripted backends."""

from __future__ import annotations

import asyncio
import base64
import struct
import time

import pytest
from antiphon.llm.v1 import generate_pb2 as gen
from antiphon.vocoder.v1 import recognition_service_pb2 as rec
from antiphon_core.errors import Internal, ResourceExhausted, Unavailable
from realtime_bench import kinds, of
from realtime_fakes import SAMPLES_A_CHARACTER
from realtime_gateway import RealtimeGateway, loud
from support.waiting import until

TURN = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
]


STORY = tuple(f" word{i}" for i in range(20_000))
"""Longer than any test: what ends it is an order."""


def without_free_events(events: list[dict]) -> list[str]:
    """Types without deltas and transcription events, whose place is free."""
    return [
        kind for kind in kinds(events) if "transcription" not in kind and not kind.endswith("delta")
    ]


async def test_a_spoken_turn_in_the_documented_order(gateway: RealtimeGateway) -> None:
    async with gateway.session() as client:
        await client.speak()
        events = await client.until("response.done")
        client.oracle.finish()
    assert without_free_events(events) == TURN
    text = "Hello there, friend."
    assert gateway.running.texts == [text]
    done = of(events, "response.output_audio_transcript.done")[0]
    assert done["transcript"] == text
    audio = b"".join(
        base64.b64decode(e["delta"]) for e in of(events, "response.output_audio.delta")
    )
    assert len(audio) == 2 * SAMPLES_A_CHARACTER * len(text)
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert response["usage"]["input_tokens"] == 11 and response["usage"]["output_tokens"] == 3
    prompt = gateway.running.prompts[0].chat.messages
    assert [part.text for message in prompt[1:] for part in message.parts] == ["what time is it"]


async def test_the_second_turn_sees_the_first(gateway: RealtimeGateway) -> None:
    async with gateway.session() as client:
        for _ in range(2):
            await client.speak()
            await client.until("response.done")
            await asyncio.sleep(1.1)  # The reply is as long: what is not played is not heard.
    texts = [message.parts[0].text for message in gateway.running.prompts[1].chat.messages[1:]]
    assert texts == ["what time is it", "Hello there, friend.", "what time is it"]


async def test_a_long_first_clause_is_spoken_before_it_ends(gateway: RealtimeGateway) -> None:
    gateway.script.words = tuple(f" word{i}" for i in range(20))
    async with gateway.session() as client:
        await client.speak()
        await client.until("response.done")
    assert gateway.running.flushed_at == [" word0 word1 word2 word3 word4 word5 "]
    assert gateway.running.texts == ["".join(gateway.script.words)]


async def test_manual_commit(gateway: RealtimeGateway) -> None:
    async with gateway.session() as client:
        await client.update(output_modalities=["text"], audio={"input": {"turn_detection": None}})
        await client.append(loud(0.5))
        await client.send("input_audio_buffer.commit")
        await client.send("response.create")
        events = await client.until("response.done")
    assert "input_audio_buffer.speech_started" not in kinds(events)
    assert of(events, "response.output_text.done")[0]["text"] == "Hello there, friend."
    detection = gateway.running.configs[-1].turn_detection
    assert detection.mode == rec.TurnDetection.MODE_NONE


async def test_cancel_closes_at_once_and_frees_the_backends(gateway: RealtimeGateway) -> None:
    gateway.script.words = STORY
    gateway.script.word_delay = 0.01
    async with gateway.session() as client:
        await client.say("talk")
        await client.send("response.create")
        await client.until("response.output_audio.delta")
        await client.send("response.cancel")
        events = await client.until("response.done")
        assert events[-1]["response"]["status_details"]["reason"] == "client_cancelled"
        await until(lambda: not gateway.running.llm and not gateway.running.voice)
        gateway.script.words = ("Again.",)
        await client.send("response.create")
        events = await client.until("response.done")
        assert events[-1]["response"]["status"] == "completed"


async def test_barge_in_silences_the_reply(gateway: RealtimeGateway) -> None:
    gateway.script.words = STORY
    gateway.script.word_delay = 0.01
    async with gateway.session() as client:
        await client.speak()
        await client.until("response.output_audio.delta")
        await client.append(loud(0.2))
        await client.until("input_audio_buffer.speech_started")
        events = await client.until("response.done")
        assert not of(events, "response.output_audio.delta"), "no audio after speech_started"
        assert events[-1]["response"]["status_details"]["reason"] == "turn_detected"
        gateway.script.words = ("Yes?",)
        await client.append(bytes(2 * 24_000))
        events = await client.until("response.done")
        assert events[-1]["response"]["status"] == "completed"
        client.oracle.finish()


async def test_a_recogniser_hears_every_byte_once(gateway: RealtimeGateway) -> None:
    async with gateway.session() as client:
        await client.update(audio={"input": {"turn_detection": None}})
        total = 0
        for size in (1, 2, 3, 959, 4801, 100_000, 7):
            encoded = base64.b64encode(bytes(size)).decode()
            await client.send("input_audio_buffer.append", audio=encoded)
            total += size
        await until(lambda: gateway.running.audio == total)


@pytest.mark.parametrize(
    ("field", "failure", "code"),
    [
        ("llm_failure", Unavailable("the engine died", reason="WORKER_DIED"), "bad_gateway"),
        ("voice_failure", ResourceExhausted("full", reason="SLOTS_FULL"), "capacity_exceeded"),
        ("voice_failure", Internal("broken"), "internal_error"),
    ],
)
async def test_a_backend_failure_fails_the_response_only(
    gateway: RealtimeGateway, field: str, failure: Exception, code: str
) -> None:
    setattr(gateway.script, field, failure)
    async with gateway.session() as client:
        await client.speak()
        events = await client.until("response.done")
        assert events[-1]["response"]["status"] == "failed"
        assert events[-1]["response"]["status_details"]["error"]["code"] == code
        assert "error" not in kinds(client.events)
        setattr(gateway.script, field, None)
        await client.speak()
        events = await client.until("response.done")
        assert events[-1]["response"]["status"] == "completed"
        client.oracle.finish()


async def test_a_recogniser_that_fails_for_good_ends_the_session(
    gateway: RealtimeGateway,
) -> None:
    gateway.script.recognizer_failure = Unavailable("gone", reason="WORKER_DIED")
    async with gateway.session() as client:
        await client.append(loud(0.1))
        events = await client.until("error", timeout=40)
        assert events[-1]["error"]["type"] == "server_error"
        await client.socket.wait_closed()
        assert client.socket.close_code == 1011


async def test_a_length_cut_is_incomplete(gateway: RealtimeGateway) -> None:
    gateway.script.finish = "FINISH_REASON_LENGTH"
    async with gateway.session() as client:
        await client.speak()
        response = (await client.until("response.done"))[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["status_details"]["reason"] == "max_output_tokens"
    assert gateway.running.prompts[0].stop.max_tokens == 120


async def test_tool_calls_pass_through(gateway: RealtimeGateway) -> None:
    gateway.script.tool_pieces = (
        gen.ToolCallDelta(index=0, id="call_7", name="clock"),
        gen.ToolCallDelta(index=0, arguments='{"zone":'),
        gen.ToolCallDelta(index=0, arguments='"UTC"}'),
    )
    gateway.script.finish = "FINISH_REASON_TOOL_CALLS"
    async with gateway.session() as client:
        tool = {"type": "function", "name": "clock", "parameters": {"type": "object"}}
        await client.update(tools=[tool], tool_choice="required")
        await client.speak()
        events = await client.until("response.done")
        call = events[-1]["response"]["output"][0]
        assert (call["name"], call["arguments"]) == ("clock", '{"zone":"UTC"}')
        assert gateway.running.voices == 0, "a voice without text times out"
        gateway.script.tool_pieces = ()
        output = {"type": "function_call_output", "call_id": "call_7", "output": "noon"}
        await client.send("conversation.item.create", item=output)
        await client.send("response.create")
        await client.until("response.done")
        client.oracle.finish()
    assert gateway.running.voices == 1
    chat = gateway.running.prompts[-1].chat
    assert chat.tools[0].name == "clock"
    assert chat.messages[-2].tool_calls[0].id == "call_7"
    assert chat.messages[-1].parts[0].text == "noon"


async def test_telephone_audio(gateway: RealtimeGateway) -> None:
    async with gateway.session() as client:
        form = {"type": "audio/pcmu"}
        await client.update(audio={"output": {"format": form}})
        await client.say("hello")
        await client.send("response.create")
        events = await client.until("response.done")
    audio = b"".join(
        base64.b64decode(e["delta"]) for e in of(events, "response.output_audio.delta")
    )
    assert len(audio) == len("Hello there, friend.") * SAMPLES_A_CHARACTER // 3


async def test_a_parallel_response_outlives_a_barge_in(gateway: RealtimeGateway) -> None:
    gateway.script.hold = asyncio.Event()
    async with gateway.session() as client:
        await client.send(
            "response.create",
            response={"conversation": "none", "input": [], "output_modalities": ["text"]},
        )
        created = (await client.until("response.created"))[-1]["response"]
        await client.append(loud(0.2))
        await client.until("input_audio_buffer.speech_started")
        gateway.script.hold.set()
        done = (await client.until("response.done"))[-1]["response"]
    assert done["id"] == created["id"] and done["status"] == "completed"


async def test_leaving_frees_everything_and_the_next_session_hears_nothing_old(
    gateway: RealtimeGateway,
) -> None:
    gateway.script.words = STORY
    gateway.script.word_delay = 0.01
    async with gateway.session() as client:
        await client.speak()
        await client.until("response.output_audio.delta")
    await until(lambda: gateway.running.none)
    async with gateway.session() as client:
        await client.send("input_audio_buffer.clear")
        events = await client.until("input_audio_buffer.cleared")
        assert not [e for e in client.events if e["type"].startswith("response")]
        assert kinds(events) == ["input_audio_buffer.cleared"]


async def test_a_tcp_reset_frees_everything(gateway: RealtimeGateway) -> None:
    gateway.script.words = STORY
    gateway.script.word_delay = 0.01
    async with gateway.session() as other:
        async with gateway.session() as client:
            await client.speak()
            await client.until("response.output_audio.delta")
            raw = client.socket.transport.get_extra_info("socket")
            raw.setsockopt(1, 13, struct.pack("ii", 1, 0))
            client.socket.transport.abort()
            await until(lambda: gateway.running.none)
        gateway.script.words = ("Fine.",)
        await other.speak()
        events = await other.until("response.done")
        assert events[-1]["response"]["status"] == "completed"


async def test_the_added_latency_is_small(gateway: RealtimeGateway) -> None:
    legs = []
    async with gateway.session() as client:
        for _ in range(8):
            await client.speak()
            await client.until("input_audio_buffer.speech_stopped")
            began = time.perf_counter()
            await client.until("response.output_audio.delta")
            legs.append(time.perf_counter() - began)
            await client.until("response.done")
    # What the gateway adds is in every leg; what a busy machine adds is not.
    assert min(legs) < 0.15, legs
    print(f"speech_stopped to first audio with instant backends: {sorted(legs)[4] * 1e3:.1f} ms")


async def test_a_slow_reader_stalls_only_itself_and_is_closed() -> None:
    gateway = RealtimeGateway(realtime={"send_stall_seconds": 0.5, "audio_lead_ms": 600_000})
    await gateway.start()
    gateway.script.words = tuple(" word" for _ in range(60))
    gateway.script.audio_bytes_a_piece = 200_000
    try:
        async with gateway.session() as other:
            async with gateway.session(max_queue=1, close_timeout=0.2) as client:
                await client.say("flood")
                await client.send("response.create")
                await client.until("response.created")
                await until(lambda: gateway.running.voice == 1)
                await asyncio.sleep(0.2)
                await other.send("input_audio_buffer.clear")
                await other.until("input_audio_buffer.cleared")
                await until(lambda: gateway.running.none)
    finally:
        await gateway.stop()
