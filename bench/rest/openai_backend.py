"""An OpenAI server without a model: ``python -m bench.rest.openai_backend PORT``.

What stands behind a proxy of OpenAI's protocol while the proxy is measured: the pieces of an
answer follow each other at once or at a given pace.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import uvicorn

MODEL = "instant"
_HEAD = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"instant",'
    b'"choices":[{"index":0,"delta":'
)
_ROLE = _HEAD + b'{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
_TEXT = _HEAD + b'{"content":" xxxxx"},"finish_reason":null}]}\n\n'
_END = _HEAD + b'{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'


def application(step_seconds: float):
    """The ASGI application."""

    async def app(scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["path"] != "/v1/chat/completions":
            models = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
            await _whole(send, json.dumps(models).encode())
            return
        start = {"type": "http.response.start", "status": 200}
        await send(start | {"headers": [(b"content-type", b"text/event-stream")]})

        async def piece(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await piece(_ROLE)
        for _ in range(json.loads(body)["max_tokens"]):
            if step_seconds:
                await asyncio.sleep(step_seconds)
            await piece(_TEXT)
        await piece(_END, more=False)

    return app


async def _whole(send, body: bytes) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--step-ms", type=float, default=0.0)
    given = parser.parse_args()
    uvicorn.run(
        application(given.step_ms / 1000), port=given.port, log_level="error", access_log=False
    )
