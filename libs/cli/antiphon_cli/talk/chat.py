"""One streamed chat answer, timed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from antiphon_cli.talk.http import raise_for_error


@dataclass(frozen=True)
class ChatAnswer:
    """Text, token count and times (seconds) of one streamed answer."""

    text: str
    tokens: int
    time_to_first_token: float
    decode_seconds: float
    """From the first to the last piece of text."""
    finish_reason: str

    @property
    def tokens_per_second(self) -> float:
        """Output tokens after the first, over the time they took."""
        return (self.tokens - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0


async def stream_chat(
    client: httpx.AsyncClient,
    messages: Sequence[dict[str, str]],
    *,
    on_text: Callable[[str], None] = lambda text: None,
    **parameters: Any,
) -> ChatAnswer:
    """POSTs /v1/chat/completions with ``stream`` and calls ``on_text`` for each piece.

    Args:
        parameters: further body fields, such as model, max_tokens, temperature or seed.
    """
    body = {
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        **parameters,
    }
    started = time.perf_counter()
    first = last = 0.0
    pieces: list[str] = []
    tokens = 0
    finish_reason = ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        await raise_for_error(response)
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[len("data: ") :])
            if "error" in chunk:
                raise RuntimeError(chunk["error"]["message"])
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
            for choice in chunk["choices"]:
                finish_reason = choice.get("finish_reason") or finish_reason
                text = choice["delta"].get("content")
                if text:
                    last = time.perf_counter()
                    first = first or last
                    pieces.append(text)
                    on_text(text)
    return ChatAnswer(
        text="".join(pieces),
        tokens=tokens,
        time_to_first_token=(first or time.perf_counter()) - started,
        decode_seconds=last - first,
        finish_reason=finish_reason,
    )
