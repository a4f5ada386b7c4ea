"""Damaged requests, made from sound ones: the same seed gives the same damage."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

BOUNDARY = "sound"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
JSON = "application/json"

_PIECES = (
    *(b"NaN", b"-Infinity", b"1e999", b"-0", b"1e-999", b"9" * 400, b"-9223372036854775809"),
    *(b"18446744073709551616", b"1.0", b"null", b"true", b'""', b"{}", b"[]", b"[" * 70),
    *(b'{"a":' * 70, b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"\x00"),
    *(b"\xef\xbb\xbf", b'"', b"\\", b"//", b",", b":", b"}", b"\r\n", b"\r\n\r\n", b"--"),
    *(b"--sound--\r\n", b"--sound\r\n", b"\xf0\x9f\x98\x80", b"%00", b"\x1b[31m", b"{{7*7}}"),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, -(2**63), 2**64, 10**40, 0.5, 1e308, -0.0),
    *("", " ", "x", "\0", "\ud800", "\U0001f600", "a" * 5000, "NaN", "../../etc/passwd"),
    *([], {}, [None], [[]], ["x"], [0], {"x": None}, {"type": "text"}, {"type": "x"}, [{}]),
)


@dataclass(frozen=True, slots=True)
class Request:
    """A POST."""

    path: str
    body: bytes
    content_type: str = JSON


def form(path: str, file: bytes, **fields: str) -> Request:
    """A sound multipart request."""
    parts = [
        b'--%s\r\ncontent-disposition: form-data; name="%s"\r\n\r\n%s\r\n'
        % (BOUNDARY.encode(), name.encode(), value.encode())
        for name, value in fields.items()
    ]
    head = b'content-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    parts.append(b"--%s\r\n%s%s\r\n" % (BOUNDARY.encode(), head, file))
    return Request(path, b"".join(parts) + b"--%s--\r\n" % BOUNDARY.encode(), FORM)


def sound_requests() -> list[Request]:
    """One of each endpoint that takes a body, small enough for a real model."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    parts = [{"type": "text", "text": "Hi"}]
    bodies: dict[str, dict] = {
        "/v1/chat/completions": {
            "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": parts}],
            "max_completion_tokens": 2,
            "temperature": 0.5,
            "logit_bias": {"5": 1},
            "stop": ["a", "b"],
            "tools": [tool],
            "response_format": {"type": "text"},
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        "/v1/completions": {"prompt": ["a", "b"], "max_tokens": 2, "logprobs": 1, "echo": True},
        "/v1/embeddings": {"input": ["a", [1, 2]], "encoding_format": "base64"},
        "/v1/responses": {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
            "max_output_tokens": 16,
            "text": {"format": {"type": "text"}},
        },
        "/v1/audio/speech": {"input": "Hi.", "voice": "alloy", "response_format": "pcm"},
        "/v1/batches": {
            "input_file_id": "file-none",
            "endpoint": "/v1/completions",
            "completion_window": "24h",
            "metadata": {"a": "b"},
        },
        "/v1/realtime/client_secrets": {"expires_after": {"seconds": 60}, "session": {"a": 1}},
        "/v1/rerank": {"query": "Hi", "documents": ["Hi", {"text": "you"}], "top_n": 1},
        "/v1/score": {"text_1": "Hi", "text_2": ["Hi"]},
        "/v1/loras": {"name": "a", "path": "none"},
        "/tokenize": {"messages": [{"role": "user", "content": "Hi"}]},
        "/detokenize": {"tokens": [72, 105]},
    }
    requests = [Request(path, json.dumps(body).encode()) for path, body in bodies.items()]
    fields = {"model": "whisper-1", "temperature": "0.2", "timestamp_granularities[]": "word"}
    for route in ("transcriptions", "translations"):
        requests.append(form(f"/v1/audio/{route}", b"RIFF" + bytes(64), **fields))
    expiry = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    return [*requests, form("/v1/files", b"{}\n", purpose="batch", **expiry)]


def damaged(request: Request, chance: random.Random) -> Request:
    """The request with one odd value, or with one to four things wrong in its bytes."""
    if request.content_type == JSON and chance.random() < 0.5:
        return Request(request.path, json.dumps(_odd(json.loads(request.body), chance)).encode())
    body = request.body
    for _ in range(chance.randint(1, 4)):
        body = chance.choice(_WAYS)(body, chance)
    content_type = request.content_type
    if chance.random() < 0.1:
        content_type = chance.choice(
            (JSON, FORM, "multipart/form-data", f"{FORM}x", "text/plain", "x", FORM.upper())
        )
    return Request(request.path, body, content_type)


def _odd(value: Any, chance: random.Random) -> Any:
    """The value with one of its parts left out, added or replaced; a finite number may be huge."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.15:
        return chance.choice(_VALUES)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = chance.choice(keys)
    if chance.random() < 0.2:
        del value[key]
    elif chance.random() < 0.2 and isinstance(value, dict):
        value[chance.choice(("x", "", "\u00e9", "model", "n", "seed"))] = chance.choice(_VALUES)
    else:
        value[key] = _odd(value[key], chance)
    return value


def _flip(body: bytes, chance: random.Random) -> bytes:
    if not body:
        return body
    changed = bytearray(body)
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(body: bytes, chance: random.Random) -> bytes:
    return body[: chance.randint(0, len(body))]


def _drop(body: bytes, chance: random.Random) -> bytes:
    start = chance.randint(0, len(body))
    return body[:start] + body[start + chance.randint(1, 8) :]


def _insert(body: bytes, chance: random.Random) -> bytes:
    start = chance.randint(0, len(body))
    return body[:start] + chance.choice(_PIECES) + body[start:]


def _replace_value(body: bytes, chance: random.Random) -> bytes:
    """Puts a piece where a JSON value stands."""
    starts = [index for index, byte in enumerate(body) if byte in b":,["]
    if not starts:
        return _insert(body, chance)
    start = chance.choice(starts) + 1
    end = min((at for at in (body.find(m, start) for m in (b",", b"}", b"]")) if at > 0), default=0)
    return body[:start] + chance.choice(_PIECES) + body[max(end, start) :]


def _repeat(body: bytes, chance: random.Random) -> bytes:
    """Says a part twice; keys among them."""
    start = chance.randint(0, len(body))
    piece = body[start : start + chance.randint(1, 60)]
    return body[:start] + piece + b"," + piece + body[start:]


_WAYS = (_flip, _flip, _cut, _drop, _insert, _insert, _replace_value, _replace_value, _repeat)
