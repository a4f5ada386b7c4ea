"""The unmodified openai package against the gateway."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import openai
import pytest
from realtime_gateway import RealtimeGateway, loud


@pytest.fixture
async def sdk(gateway: RealtimeGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="sk-any", max_retries=0
    ) as client:
        yield client


async def test_audio_in_audio_out(gateway: RealtimeGateway, sdk: openai.AsyncOpenAI) -> None:
    async with sdk.realtime.connect(model="gpt-realtime") as connection:
        await connection.session.update(
            session={
                "type": "realtime",
                "instructions": "Be kind.",
                "audio": {
                    "input": {
                        "turn_detection": {"type": "semantic_vad", "eagerness": "high"},
                        "transcription": {"model": "gpt-4o-mini-transcribe"},
                        "noise_reduction": {"type": "near_field"},
                    },
                    "output": {"voice": "alloy"},
                },
            }
        )
        speech = base64.b64encode(loud(0.5) + bytes(48_000)).decode()
        await connection.input_audio_buffer.append(audio=speech)
        audio = b""
        transcript = ""
        async with asyncio.timeout(30):
            async for event in connection:
                if event.type == "response.output_audio.delta":
                    audio += base64.b64decode(event.delta)
                elif event.type == "conversation.item.input_audio_transcription.completed":
                    transcript = event.transcript
                elif event.type == "session.updated":
                    detection = event.session.audio.input.turn_detection
                    assert detection.interrupt_response is True
                elif event.type == "response.done":
                    break
    assert transcript == "what time is it"
    assert len(audio) > 10_000
    assert event.response.output[0].content[0].transcript == "Hello there, friend."
    assert event.response.usage.total_tokens == 14


async def test_items_responses_and_errors(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.realtime.connect(model="small") as connection:
        await connection.conversation.item.create(
            item={
                "id": "mine",
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Hi"}],
            }
        )
        await connection.response.create(
            response={"output_modalities": ["text"], "metadata": {"k": "v"}}
        )
        await connection.response.cancel(event_id="early")
        await connection.conversation.item.retrieve(item_id="mine")
        await connection.conversation.item.delete(item_id="mine")
        await connection.input_audio_buffer.commit(event_id="empty")
        seen = {}
        async with asyncio.timeout(30):
            async for event in connection:
                seen[event.type] = event
                if event.type == "error":
                    break
    assert seen["conversation.item.retrieved"].item.id == "mine"
    assert seen["conversation.item.deleted"].item_id == "mine"
    assert seen["response.done"].response.metadata == {"k": "v"}
    assert seen["error"].error.event_id == "empty"


async def test_client_secrets(gateway: RealtimeGateway, sdk: openai.AsyncOpenAI) -> None:
    made = await sdk.realtime.client_secrets.create(
        session={"type": "realtime", "model": "gpt-realtime", "instructions": "Sing."},
        expires_after={"anchor": "created_at", "seconds": 30},
    )
    assert made.session.type == "realtime"
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=made.value) as browser:
        async with browser.realtime.connect(model="gpt-realtime") as connection:
            event = await connection.recv()
            assert event.session.instructions == "Sing."


async def test_a_client_may_repeat_the_name_that_it_connected_with(
    sdk: openai.AsyncOpenAI,
) -> None:
    async with sdk.realtime.connect(model="gpt-realtime-mini") as connection:
        for name in ("gpt-realtime-mini", "gpt-realtime", "small"):
            await connection.session.update(session={"type": "realtime", "model": name})
            async for event in connection:
                if event.type in ("session.updated", "error"):
                    break
            assert event.type == "session.updated" and event.session.model == "small"
        await connection.session.update(session={"type": "realtime", "model": "another"})
        async for event in connection:
            if event.type == "error":
                break
        assert event.error.code == "cannot_update_model"
