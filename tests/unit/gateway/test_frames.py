"""Prebuilt stream frames equal the generic encoder's, whatever the text."""

from __future__ import annotations

import json

import pytest
from antiphon_gateway.domain.generation import Delta, TokenLogprob, ToolCallDelta
from antiphon_gateway.openai import chat_output as chat
from antiphon_gateway.openai import completions
from hypothesis import given
from hypothesis import strategies as st

MODEL = 'mod"el\\\u0000\u00e9'


def chat_frames(usage: bool = False, counts: bool = False) -> chat.ChatFrames:
    return chat.ChatFrames(
        completion_id="chatcmpl-1",
        created=5,
        model=MODEL,
        fingerprint="fp",
        choice_count=3,
        include_usage=usage,
        include_token_count=counts,
    )


def completion_frames(usage: bool = False, counts: bool = False) -> completions.CompletionFrames:
    return completions.CompletionFrames(
        completion_id="cmpl-1",
        created=5,
        model=MODEL,
        fingerprint="fp",
        choice_count=3,
        include_usage=usage,
        include_token_count=counts,
    )


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1)


@given(TEXTS, st.integers(0, 2), st.booleans(), st.booleans())
def test_chat_text_frame(text: str, choice: int, usage: bool, counts: bool) -> None:
    frames = chat_frames(usage, counts)
    generic = frames.chunk(chat.ChunkChoice(choice, chat.Delta(content=text)), token_count=4)
    assert frames.text(choice, text, 4) == chat.sse_frame(generic)


@given(TEXTS, st.integers(0, 2), st.booleans(), st.booleans())
def test_completion_text_frame(text: str, choice: int, usage: bool, counts: bool) -> None:
    frames = completion_frames(usage, counts)
    generic = frames.frame(completions.CompletionChoice(text, choice), token_count=4)
    assert frames.text(choice, text, 4) == generic


@given(TEXTS)
def test_a_frame_is_one_line_of_json(text: str) -> None:
    frame = chat_frames().delta(Delta(0, text))
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert b"\n" not in frame[:-2]
    assert json.loads(frame[6:])["choices"][0]["delta"]["content"] == text


def test_empty_output_makes_no_frame() -> None:
    assert chat_frames().delta(Delta(0, "", token_count=1)) == b""
    assert completion_frames().delta(Delta(0, "", token_count=1)) == b""


def test_logprobs_of_held_back_text_still_come() -> None:
    delta = Delta(0, "", logprobs=(TokenLogprob(1, b"\xe4", -1.0),))
    choice = json.loads(chat_frames().delta(delta)[6:])["choices"][0]
    assert choice["delta"] == {"content": ""}
    assert choice["logprobs"]["content"][0]["bytes"] == [0xE4]
    choice = json.loads(completion_frames().delta(delta)[6:])["choices"][0]
    assert choice["logprobs"]["tokens"] == ["bytes:\\xe4"]


def test_tool_call_pieces() -> None:
    frames = chat_frames()
    first = json.loads(frames.delta(Delta(0, tool_calls=(ToolCallDelta(0, "c", "f", ""),)))[6:])
    later = json.loads(frames.delta(Delta(0, tool_calls=(ToolCallDelta(0, "", "", "{}"),)))[6:])
    assert first["choices"][0]["delta"]["tool_calls"] == [
        {"index": 0, "function": {"name": "f", "arguments": ""}, "id": "c", "type": "function"}
    ]
    assert later["choices"][0]["delta"]["tool_calls"] == [
        {"index": 0, "function": {"arguments": "{}"}}
    ]


@pytest.mark.parametrize("cut", range(1, 4))
def test_offsets_count_characters_across_split_tokens(cut: int) -> None:
    character = "\U0001f600".encode()
    tokens = [b"a", character[:cut], character[cut:], b"b"]
    text = completions.LogprobText()
    result = text.convert([TokenLogprob(0, token, -1.0) for token in tokens])
    assert result.text_offset == [0, 1, 1, 2]
    assert result.tokens[1].startswith("bytes:\\xf0")
