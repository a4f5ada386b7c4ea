"""Runs LiteLLM against a server; prints what it saw as one JSON object."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import litellm

URL, MODEL = sys.argv[1:]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
SHARED: dict[str, Any] = {"api_base": URL, "api_key": "unused", "max_retries": 0}
CHAT = {**SHARED, "model": f"openai/{MODEL}", "messages": QUESTION, "temperature": 0}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
FRUIT = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


def text_of(stream: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def refusal(**changes: Any) -> list[str]:
    try:
        litellm.completion(**{**CHAT, **changes})
    except Exception as error:
        return [type(error).__name__, str(getattr(error, "status_code", ""))]
    return []


async def in_parallel() -> list[str]:
    calls = [litellm.acompletion(**CHAT, max_tokens=12) for _ in range(3)]
    return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]


def main() -> None:
    answer = litellm.completion(**CHAT, max_tokens=24)
    called = litellm.completion(**CHAT, max_tokens=64, tools=[TOOL], tool_choice="required")
    schema = {"name": "fruit", "schema": FRUIT, "strict": True}
    shaped = litellm.completion(
        **CHAT,
        max_tokens=128,
        response_format={"type": "json_schema", "json_schema": schema},
    )
    completed = litellm.text_completion(
        **SHARED,
        model=f"text-completion-openai/{MODEL}",
        prompt="The capital of France is",
        max_tokens=4,
        temperature=0,
    )
    speech = litellm.speech(**SHARED, model="openai/tts-1", voice="alloy", input="Good morning.")
    vectors = litellm.embedding(
        **SHARED, model=f"openai/{MODEL}", input=["one", "two"], encoding_format="float"
    )
    seen = {
        "text": answer.choices[0].message.content,
        "tokens": answer.usage.completion_tokens,
        "finish": answer.choices[0].finish_reason,
        "streamed": text_of(litellm.completion(**CHAT, max_tokens=24, stream=True)),
        "calls": [call.function.arguments for call in called.choices[0].message.tool_calls],
        "shaped": shaped.choices[0].message.content,
        "completed": completed.choices[0].text,
        "speech": len(speech.content),
        "vectors": [len(item["embedding"]) for item in vectors.data],
        "parallel": asyncio.run(in_parallel()),
        "unknown_model": refusal(model="openai/gpt-9"),
        "wrong_value": refusal(top_p=7),
    }
    print(json.dumps(seen))


main()
