"""The real curl against the real stack: what goes over the wire, byte for byte."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.suite import RunningSuite

MODEL = "smollm2-135m-instruct"
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 8}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]


def curl(suite: RunningSuite, path: str, *arguments: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers by lower-case name, and body."""
    command = ["curl", "-sS", "-N", "-i", "--http1.1", "--max-time", "60", *arguments]
    done = subprocess.run([*command, f"{suite.url}{path}"], capture_output=True, timeout=90)
    assert done.returncode == 0, done.stderr
    head, _, body = done.stdout.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    pairs = (line.partition(": ") for line in lines)
    return int(status.split()[1]), {name.lower(): value for name, _, value in pairs}, body


def post(suite: RunningSuite, path: str, body: object) -> tuple[int, dict[str, str], bytes]:
    data = body if isinstance(body, str) else json.dumps(body)
    return curl(suite, path, "-H", "content-type: application/json", "-d", data)


def masked(text: str) -> str:
    """The text without what differs from run to run."""
    text = re.sub(r'"(id|system_fingerprint)":"[^"]*"', r'"\1":"*"', text)
    return re.sub(r'"created":\d+', '"created":0', text)


def test_a_chat_stream(suite: RunningSuite) -> None:
    body = {**GREEDY, "messages": QUESTION, "stream": True}
    status, headers, answer = post(suite, "/v1/chat/completions", body)
    assert status == 200
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-store" and headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in headers and "content-length" not in headers
    text = answer.decode()
    assert text.endswith("\n\ndata: [DONE]\n\n") and "\r" not in text
    blocks = masked(text).removesuffix("\n\n").split("\n\n")
    start = (
        'data: {"id":"*","object":"chat.completion.chunk","created":0,"model":"'
        + MODEL
        + '","system_fingerprint":"*","choices":[{"index":0,"delta":'
    )
    end = ',"logprobs":null,"finish_reason":null}]}'
    assert blocks[0] == start + '{"role":"assistant","content":""}' + end
    for block in blocks[1:-2]:
        assert re.fullmatch(re.escape(start) + r'\{"content":"[^\n]+"\}' + re.escape(end), block)
    assert re.fullmatch(
        re.escape(start) + r'\{\},"logprobs":null,"finish_reason":"(stop|length)"\}\]\}', blocks[-2]
    )


def test_a_whole_completion(suite: RunningSuite) -> None:
    body = {**GREEDY, "max_tokens": 1, "prompt": "The capital of France is"}
    status, headers, answer = post(suite, "/v1/completions", body)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert int(headers["content-length"]) == len(answer)
    text = re.sub(r'"cached_tokens":\d+', '"cached_tokens":0', masked(answer.decode()))
    assert text == (
        '{"id":"*","object":"text_completion","created":0,"model":"' + MODEL + '",'
        '"system_fingerprint":"*","choices":[{"text":" Paris","index":0,"logprobs":null,'
        '"finish_reason":"length"}],"usage":{"prompt_tokens":5,"completion_tokens":1,'
        '"total_tokens":6,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},'
        '"completion_tokens_details":{}}}'
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        (
            "/v1/chat/completions",
            "{",
            400,
            '{"error":{"message":"the body is not valid JSON: Input data was truncated",'
            '"type":"invalid_request_error","param":null,"code":"invalid_json"}}',
        ),
        (
            "/v1/chat/completions",
            {"messages": QUESTION, "n": 0, "stream": True},
            400,
            '{"error":{"message":"n: expected `int` >= 1","type":"invalid_request_error",'
            '"param":"n","code":"invalid_value"}}',
        ),
        (
            "/v1/nothing",
            {},
            404,
            '{"error":{"message":"no route POST /v1/nothing","type":"invalid_request_error",'
            '"param":null,"code":"not_found"}}',
        ),
    ],
)
def test_a_refusal(suite: RunningSuite, path: str, body: object, status: int, error: str) -> None:
    got, headers, answer = post(suite, path, body)
    assert (got, answer.decode()) == (status, error)
    assert headers["content-type"] == "application/json" and headers["x-request-id"]


def test_speech_into_a_file_and_its_transcript(suite: RunningSuite, tmp_path: Path) -> None:
    file = tmp_path / "fox.wav"
    speech = {"model": "tts-1", "voice": "alloy", "response_format": "wav"}
    speech["input"] = "The quick brown fox jumps over the lazy dog."
    status, headers, answer = post(suite, "/v1/audio/speech", speech)
    assert (status, headers["content-type"]) == (200, "audio/wav")
    assert answer[:4] == b"RIFF" and int.from_bytes(answer[4:8], "little") == len(answer) - 8
    file.write_bytes(answer)
    form = ("-F", "model=whisper-1", "-F", f"file=@{file}", "-F", "response_format=text")
    status, headers, heard = curl(suite, "/v1/audio/transcriptions", *form)
    assert (status, headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert b"brown fox" in heard and heard.endswith(b"\n")


def test_events_of_a_response(suite: RunningSuite) -> None:
    body = {"model": MODEL, "input": "Hi", "max_output_tokens": 16, "stream": True}
    status, _, answer = post(suite, "/v1/responses", body)
    assert status == 200
    blocks = answer.decode().removesuffix("\n\n").split("\n\n")
    for number, block in enumerate(blocks):
        event, data = block.split("\n")
        described = json.loads(data.removeprefix("data: "))
        assert event == f"event: {described['type']}"
        assert described["sequence_number"] == number
    assert "[DONE]" not in answer.decode()
