"""Runs llama-index's OpenAILike against a server; prints what it saw as one JSON object."""

import asyncio
import json
import sys
from typing import Any, Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]
QUESTION = "What is the capital of France?"


class Fruit(BaseModel):
    """A fruit."""

    colour: Literal["red", "green"]


def weather(city: Literal["Paris", "Rome"]) -> str:
    """Tells the weather of a city."""
    return f"Sunny in {city}."


def model(**changes: Any) -> OpenAILike:
    options = {
        "model": MODEL,
        "api_base": URL,
        "api_key": "unused",
        "temperature": 0.0,
        "max_tokens": 24,
        "context_window": 2048,
        "is_chat_model": True,
        "is_function_calling_model": True,
        "max_retries": 0,
    }
    return OpenAILike(**{**options, **changes})


async def streamed(chat: OpenAILike) -> str:
    stream = await chat.astream_chat([ChatMessage(role="user", content=QUESTION)])
    return "".join([chunk.delta or "" async for chunk in stream])


def main() -> None:
    chat, plain = model(), model(is_chat_model=False, max_tokens=4)
    messages = [ChatMessage(role="user", content=QUESTION)]
    long = model(max_tokens=128)
    called = long.chat_with_tools(
        [FunctionTool.from_defaults(weather)], user_msg="Weather in Rome?", tool_required=True
    )
    prompt = "The capital of France is"
    shaped = long.as_structured_llm(Fruit).chat(
        [ChatMessage(role="user", content="Describe a fruit.")]
    )
    seen = {
        "text": chat.chat(messages).message.content,
        "streamed": "".join(chunk.delta or "" for chunk in chat.stream_chat(messages)),
        "async_streamed": asyncio.run(streamed(model())),
        "completed": plain.complete(prompt).text,
        "stream_completed": "".join(chunk.delta or "" for chunk in plain.stream_complete(prompt)),
        "calls": [
            [call.tool_name, call.tool_kwargs] for call in long.get_tool_calls_from_response(called)
        ],
        "shaped": shaped.raw.colour,
    }
    print(json.dumps(seen))


main()
