"""LiveKit's openai plugin, as an agent session uses it. Prints what it saw as JSON.

python livekit_driver.py <http address> <model> <question.wav>

The address is a relay that cuts the line once the input buffer is cleared: the plugin connects
again by itself and replays its history.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any, Literal

import aiohttp
from livekit import rtc
from livekit.agents import llm
from livekit.plugins import openai
from speech import RATE, Microphone, question

LIMIT_S = 100
REPLY_TOKENS = 100
STORY = "Tell me a very long story about a fox, a raven and a wolf."


@llm.function_tool
async def weather(city: Literal["Paris", "Rome"]) -> str:
    """Tells the weather of a city."""
    return f"Sunny in {city}."


class Ear:
    """Reads generations as an agent session does."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.events: Counter[str] = Counter()
        self.errors: list[str] = []
        self.transcripts: list[str] = []
        self.generations: asyncio.Queue[Any] = asyncio.Queue()
        for name in (
            "input_speech_started",
            "input_speech_stopped",
            "session_reconnected",
            "remote_item_added",
        ):
            session.on(name, lambda _event, name=name: self.events.update([name]))
        session.on("error", lambda event: self.errors.append(repr(event.error)))
        session.on("generation_created", self.generations.put_nowait)
        session.on("input_audio_transcription_completed", self._transcribed)

    def _transcribed(self, event: Any) -> None:
        if event.is_final:
            self.transcripts.append(event.transcript)

    async def until(self, name: str, count: int = 1) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self.events[name] < count:
                await asyncio.sleep(0.02)

    async def reply(self, generation: Any, found: dict[str, Any] | None = None) -> dict[str, Any]:
        """Everything of one generation; ``found`` is filled as it comes."""
        found = {} if found is None else found
        found |= {"text": "", "samples": 0, "calls": [], "ids": []}
        async with asyncio.timeout(LIMIT_S):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._messages(generation, found))
                group.create_task(self._calls(generation, found))
        return found

    async def _messages(self, generation: Any, found: dict[str, Any]) -> None:
        async for message in generation.message_stream:
            found["ids"].append(message.message_id)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._text(message, found))
                group.create_task(self._audio(message, found))

    async def _text(self, message: Any, found: dict[str, Any]) -> None:
        async for piece in message.text_stream:
            found["text"] += piece

    async def _audio(self, message: Any, found: dict[str, Any]) -> None:
        async for frame in message.audio_stream:
            found["samples"] += frame.samples_per_channel

    async def _calls(self, generation: Any, found: dict[str, Any]) -> None:
        async for call in generation.function_stream:
            found["calls"].append({"id": call.call_id, "name": call.name, "args": call.arguments})


async def add(session: Any, *items: Any) -> None:
    """Adds items to the history, as an agent session does after a turn."""
    context = session.chat_ctx.copy()
    context.items.extend(items)
    await session.update_chat_ctx(context)


def user(text: str) -> llm.ChatMessage:
    return llm.ChatMessage(role="user", content=[text])


async def tool_call(session: Any, ear: Ear) -> dict[str, Any]:
    """A forced call, its output, and the reply to it."""
    await session.update_tools([weather])
    await add(session, user("How is the weather in Paris?"))
    named: Any = {"type": "function", "function": {"name": "weather"}}
    generation = await session.generate_reply(tool_choice=named)
    called = await ear.reply(generation)
    outputs = [
        llm.FunctionCallOutput(
            call_id=call["id"], name=call["name"], output="Sunny.", is_error=False
        )
        for call in called["calls"]
    ]
    await add(session, *outputs)
    answered = await ear.reply(await session.generate_reply(tool_choice="none"))
    return {"called": called, "answered": answered}


async def barge_in(session: Any, ear: Ear, microphone: Microphone, pcm: bytes) -> dict[str, Any]:
    """A story that speech interrupts; the rest of it is truncated away."""
    await add(session, user(STORY))
    generation = await session.generate_reply()
    heard: dict[str, Any] = {}
    reading = asyncio.create_task(ear.reply(generation, heard))
    started = ear.events["input_speech_started"]
    while not ear.generations.empty():
        ear.generations.get_nowait()
    async with asyncio.timeout(LIMIT_S):
        while not heard.get("samples"):
            await asyncio.sleep(0.02)
    microphone.say(pcm)
    await ear.until("input_speech_started", started + 1)
    session.interrupt()
    cut = await reading
    session.truncate(message_id=cut["ids"][-1], modalities=["audio"], audio_end_ms=200)
    answer = await asyncio.wait_for(ear.generations.get(), LIMIT_S)
    answered = await ear.reply(answer)
    return {"cut": cut, "answered": answered}


async def main(address: str, model: str, file: str) -> dict[str, Any]:
    pcm = question(file)
    result: dict[str, Any] = {}
    async with aiohttp.ClientSession() as http:
        plugin = openai.realtime.RealtimeModel(
            model=model,
            voice="alloy",
            base_url=f"{address}/v1",
            api_key="unused",
            http_session=http,
        )
        # The plugin's default is no limit; replies are read at the pace of their playback.
        plugin.update_options(max_response_output_tokens=REPLY_TOKENS)
        session = plugin.session()
        ear = Ear(session)
        await session.update_instructions("Be brief.")
        push = audio_sink(session)
        async with Microphone(push) as microphone:
            microphone.say(pcm)
            spoken = await asyncio.wait_for(ear.generations.get(), LIMIT_S)
            result["spoken"] = await ear.reply(spoken)
            result["barge_in"] = await barge_in(session, ear, microphone, pcm)
        # Last: a small model goes on to answer everything in the words of a tool's output.
        result["tool"] = await tool_call(session, ear)
        session.clear_audio()
        await ear.until("session_reconnected")
        await add(session, user("Say hello."))
        result["after"] = await ear.reply(await session.generate_reply(tool_choice="none"))
        result["history"] = [{"id": item.id, "type": item.type} for item in session.chat_ctx.items]
        result["events"] = ear.events
        result["errors"] = ear.errors
        result["transcripts"] = ear.transcripts
        await session.aclose()
    return result


def audio_sink(session: Any) -> Any:
    """Pushes 24 kHz mono PCM as LiveKit's frames."""

    async def push(frame: bytes) -> None:
        session.push_audio(rtc.AudioFrame(frame, RATE, 1, len(frame) // 2))

    return push


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
