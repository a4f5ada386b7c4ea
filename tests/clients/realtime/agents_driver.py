"""openai-agents' realtime session, as its users have it. Prints what it saw as JSON.

python agents_driver.py <http address> <model> <question.wav>
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeModelSendRawMessage, RealtimeRunner
from speech import Microphone, question

LIMIT_S = 100
FORCED = {"tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 200}
STORY = "Tell me a very long story about a fox, a raven and a wolf."


class Watched:
    """Reads a session's events."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.seen: list[Any] = []
        self._changed = asyncio.Event()

    async def read(self) -> None:
        async for event in self.session:
            self.seen.append(event)
            self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def count(self, kind: str) -> int:
        return sum(event.type == kind for event in self.seen)

    def raw(self, kind: str) -> int:
        """Events of the model layer."""
        return sum(
            event.type == "raw_model_event" and event.data.type == kind for event in self.seen
        )


async def conversation(url: str, model: str, pcm: bytes) -> dict[str, Any]:
    """A spoken turn, an interrupted story, a tool call.

    The call comes last: a small model goes on to answer everything in the words of a tool's output.
    """
    asked: list[str] = []

    @function_tool
    def weather(city: Literal["Paris", "Rome"]) -> str:
        """Tells the weather of a city."""
        asked.append(city)
        return f"Sunny in {city}."

    agent = RealtimeAgent(name="voice", instructions="Be brief.", tools=[weather])
    settings: dict[str, Any] = {
        "model_name": model,
        "max_output_tokens": 24,
        "tool_choice": "none",
        "audio": {
            "input": {"transcription": {"model": "whisper-1"}},
        },
    }
    config = {"url": url, "api_key": "unused", "initial_model_settings": settings}
    runner = RealtimeRunner(agent, config={"model_settings": settings, "async_tool_calls": True})
    async with await runner.run(model_config=config) as session:
        watched = Watched(session)
        reading = asyncio.create_task(watched.read())
        async with Microphone(session.send_audio) as microphone:
            result = await spoken(watched, microphone, pcm)
            await interrupted(watched, microphone, pcm)
        ended = watched.raw("turn_ended")
        await say(session, "How is the weather in Paris?")
        await create(session, **FORCED)
        await watched.until(lambda: watched.count("tool_end"))
        await watched.until(lambda: watched.raw("turn_ended") >= ended + 2)
    reading.cancel()
    return {
        **result,
        "events": Counter(event.type for event in watched.seen),
        "asked": asked,
        "errors": [repr(e.error) for e in watched.seen if e.type == "error"],
        "exceptions": [
            repr(e.data)
            for e in watched.seen
            if e.type == "raw_model_event" and e.data.type in ("exception", "error")
        ],
    }


async def spoken(watched: Watched, microphone: Microphone, pcm: bytes) -> dict[str, Any]:
    """A question that is answered to its end."""
    microphone.say(pcm)
    await watched.until(lambda: watched.raw("turn_ended") and watched.count("audio"))
    await watched.until(lambda: transcript_of(watched.seen))
    audio = sum(len(event.audio.data) for event in watched.seen if event.type == "audio")
    return {"audio_bytes": audio, "transcript": transcript_of(watched.seen)}


async def interrupted(watched: Watched, microphone: Microphone, pcm: bytes) -> None:
    """A story that a question breaks off, and the answer to that."""
    heard, cuts = watched.count("audio"), watched.count("audio_interrupted")
    ended = watched.raw("turn_ended")
    await say(watched.session, STORY)
    await create(watched.session, max_output_tokens=400)
    await watched.until(lambda: watched.count("audio") > heard)
    microphone.say(pcm)
    await watched.until(lambda: watched.count("audio_interrupted") > cuts)
    await watched.until(lambda: watched.raw("turn_ended") >= ended + 1)
    heard = watched.count("audio")
    await watched.until(lambda: watched.raw("turn_ended") >= ended + 2)
    await watched.until(lambda: watched.count("audio") > heard)


async def send(session: Any, kind: str, **fields: Any) -> None:
    """One event in the client's own raw form."""
    message = {"type": kind, "other_data": fields}
    await session.model.send_event(RealtimeModelSendRawMessage(message=message))


async def say(session: Any, text: str) -> None:
    """Adds a written message."""
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content}
    await send(session, "conversation.item.create", item=item)


async def create(session: Any, **options: Any) -> None:
    """Asks for a response of its own kind."""
    await send(session, "response.create", response=options)


def transcript_of(seen: list[Any]) -> str:
    """The user's first words in the newest history."""
    updates = [event for event in seen if event.type in ("history_updated",)]
    for item in updates[-1].history if updates else ():
        if getattr(item, "role", "") == "user":
            for part in item.content:
                if text := getattr(part, "transcript", None):
                    return text
    return ""


async def again(url: str, model: str) -> dict[str, Any]:
    """A further connection with a written turn."""
    settings: dict[str, Any] = {"model_name": model, "max_output_tokens": 16}
    config = {"url": url, "api_key": "unused", "initial_model_settings": settings}
    async with await RealtimeRunner(RealtimeAgent(name="again")).run(
        model_config=config
    ) as session:
        watched = Watched(session)
        reading = asyncio.create_task(watched.read())
        await session.send_message("Say hello.")
        await watched.until(lambda: watched.count("audio_end"))
    reading.cancel()
    return {"events": Counter(event.type for event in watched.seen)}


async def main(address: str, model: str, file: str) -> dict[str, Any]:
    url = address.replace("http", "ws", 1) + f"/v1/realtime?model={model}"
    first = await conversation(url, model, question(file))
    return {"first": first, "again": await again(url, model)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
