"""The unmodified openai SDK's realtime client: audio in, audio out, against real models."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import numpy as np
import openai
import pytest
from antiphon_cli.talk.audio import REALTIME_RATE, from_pcm16
from antiphon_cli.talk.speech import word_error_rate
from antiphon_cli.tour import QUESTION
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from support.suite import RunningSuite

pytestmark = pytest.mark.real

FRAME_BYTES = 2 * REALTIME_RATE // 25


@pytest.fixture
async def client(suite: RunningSuite) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{suite.url}/v1", api_key="unused", max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def question(client: openai.AsyncOpenAI) -> bytes:
    spoken = await client.audio.speech.create(
        model="tts-1", voice="alloy", input=QUESTION, response_format="pcm"
    )
    return spoken.content


async def append(connection: AsyncRealtimeConnection, pcm: bytes, pace: float = 1.0) -> None:
    """Sends 40 ms frames at ``pace`` times real time."""
    for start in range(0, len(pcm), FRAME_BYTES):
        frame = base64.b64encode(pcm[start : start + FRAME_BYTES]).decode()
        await connection.input_audio_buffer.append(audio=frame)
        await asyncio.sleep(0.04 / pace)


async def collect(connection: AsyncRealtimeConnection, last: str, timeout: float = 60.0) -> list:
    events = []
    async with asyncio.timeout(timeout):
        async for event in connection:
            assert event.type != "error", event
            events.append(event)
            if event.type == last:
                return events
    raise AssertionError("the connection closed")


def audio_of(events: list) -> np.ndarray:
    deltas = [e.delta for e in events if e.type == "response.output_audio.delta"]
    return from_pcm16(b"".join(map(base64.b64decode, deltas)))


async def test_a_spoken_question_gets_a_spoken_answer(client: openai.AsyncOpenAI, question: bytes):
    async with client.realtime.connect(model="default") as connection:
        await connection.session.update(
            session={
                "type": "realtime",
                "output_modalities": ["audio"],
                "max_output_tokens": 24,
                "audio": {
                    "input": {
                        "transcription": {"model": "whisper-1"},
                        "turn_detection": {"type": "server_vad", "silence_duration_ms": 500},
                    }
                },
            }
        )
        silence = bytes(2 * REALTIME_RATE)
        sender = asyncio.create_task(append(connection, question + silence))
        events = await collect(connection, "response.done")
        await sender
    kinds = [event.type for event in events]
    order = [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "response.created",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.done",
    ]
    positions = [kinds.index(kind) for kind in order]
    assert positions == sorted(positions)
    completed = [
        e for e in events if e.type == "conversation.item.input_audio_transcription.completed"
    ]
    assert word_error_rate(QUESTION, completed[0].transcript) <= 0.35
    samples = audio_of(events)
    assert len(samples) > REALTIME_RATE // 4
    assert np.abs(samples).max() > 0.05
    spoken = next(e for e in events if e.type == "response.output_audio_transcript.done")
    assert spoken.transcript.strip()


async def test_manual_commit_and_a_text_answer(client: openai.AsyncOpenAI, question: bytes):
    async with client.realtime.connect(model="default") as connection:
        await connection.session.update(
            session={
                "type": "realtime",
                "output_modalities": ["text"],
                "max_output_tokens": 16,
                "audio": {"input": {"turn_detection": None}},
            }
        )
        await append(connection, question, pace=20)
        await connection.input_audio_buffer.commit()
        await connection.response.create()
        events = await collect(connection, "response.done")
    kinds = [event.type for event in events]
    assert "input_audio_buffer.speech_started" not in kinds
    deltas = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    done = next(e for e in events if e.type == "response.output_text.done")
    assert deltas == done.text and done.text


async def test_speech_interrupts_the_answer(client: openai.AsyncOpenAI, question: bytes):
    async with client.realtime.connect(model="default") as connection:
        await connection.session.update(
            session={
                "type": "realtime",
                "instructions": "Answer at length.",
                "max_output_tokens": 400,
            }
        )
        await connection.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Tell me a long story about a fox."}],
            }
        )
        await connection.response.create()
        await collect(connection, "response.output_audio.delta")
        sender = asyncio.create_task(append(connection, question + bytes(2 * REALTIME_RATE)))
        events = await collect(connection, "response.done")
        assert events[-1].response.status == "cancelled"
        assert events[-1].response.status_details.reason == "turn_detected"
        following = await collect(connection, "response.output_audio.delta")
        await sender
    assert following[-1].response_id != events[-1].response.id


async def test_a_client_error_leaves_the_session_alive(client: openai.AsyncOpenAI):
    async with client.realtime.connect(model="default") as connection:
        await connection.input_audio_buffer.commit()
        async with asyncio.timeout(30):
            async for event in connection:
                if event.type == "error":
                    break
        assert event.error.code == "input_audio_buffer_commit_empty"
        await connection.session.update(session={"type": "realtime", "instructions": "Be brief."})
        events = await collect(connection, "session.updated")
        assert events[-1].session.instructions == "Be brief."
