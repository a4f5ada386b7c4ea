"""The events of a response: their order, their bytes, and the items that they add up to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from antiphon_core.errors import Internal
from antiphon_gateway.convert.responses import conversation_of
from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.domain.generation import (
    Delta,
    Message,
    Modality,
    Role,
    TokenAlternative,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
)
from antiphon_gateway.openai import response_items as items
from antiphon_gateway.openai.response_output import (
    EVENTS,
    Response,
    event_frame,
    new_response,
)
from antiphon_gateway.openai.response_stream import ResponseStream
from antiphon_gateway.openai.responses import ResponseRequest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import responses as sdk
from pydantic import TypeAdapter

ID = "resp_" + "0" * 32
SDK_EVENT: TypeAdapter[Any] = TypeAdapter(sdk.ResponseStreamEvent)
MODEL = ModelInfo("m", 100, (Modality.TEXT,), (Modality.TEXT,), chat=True)


def streamed(
    deltas: Sequence[Delta],
    status: Any = "completed",
    *,
    logprobs: bool = False,
    as_declared: bool = True,
) -> tuple[Response, list[dict[str, Any]]]:
    """The response and the events of a generation; checks what holds for all of them.

    Args:
        deltas: what the model says.
        status: how it ends.
        logprobs: whether text carries them.
        as_declared: check the events against the SDK's types, which takes its time.
    """
    response = new_response(ResponseRequest(input="x"), ID, created_at=1, model="m", store=False)
    stream = ResponseStream(response, first_item=1, with_logprobs=logprobs)
    frames = stream.begin() + b"".join(stream.delta(delta) for delta in deltas)
    frames += stream.end("completed" if status == "completed" else "incomplete")
    response.status = status
    frames += stream.terminal()
    events = []
    for number, block in enumerate(frames.decode().removesuffix("\n\n").split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        if as_declared:
            SDK_EVENT.validate_python(event, strict=True)
        events.append(event)
    check_order(events)
    return response, events


def check_order(events: list[dict[str, Any]]) -> None:
    """Items follow each other; each begins, grows and ends, and its end is its sum."""
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    open_item, text, done = None, "", []
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert open_item is None and event["output_index"] == len(done)
            open_item, text = event["item"], ""
            assert open_item["status"] == "in_progress"
            continue
        assert open_item is not None and event["output_index"] == len(done)
        if kind == "output_item.done":
            done.append(event["item"])
            assert event["item"]["id"] == open_item["id"]
            assert text_of(event["item"]) == text
            open_item = None
            continue
        assert event["item_id"] == open_item["id"]
        if kind.endswith(".delta"):
            text += event["delta"]
        elif kind.endswith("content_part.added"):
            assert event["part"]["text"] == ""
        elif kind.endswith("content_part.done"):
            assert event["part"]["text"] == text
        else:
            assert event.get("text", event.get("arguments")) == text
    assert open_item is None
    assert events[-1]["response"]["output"] == done


def text_of(item: dict[str, Any]) -> str:
    return item.get("arguments", "") or "".join(part["text"] for part in item.get("content", ()))


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events[2:]]


def call(index: int, arguments: str, name: str = "") -> Delta:
    identifier = f"call_{index}" if name else ""
    return Delta(0, tool_calls=(ToolCallDelta(index, identifier, name, arguments),))


def test_reasoning_text_and_calls_in_order() -> None:
    response, events = streamed(
        [
            Delta(0, reasoning="h"),
            Delta(0, reasoning="m"),
            Delta(0, text="Look"),
            call(0, '{"a"', "look"),
            call(0, ":1}"),
            call(1, "{}", "wait"),
        ]
    )
    assert kinds(events) == [
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]
    look, wait = response.output[2:]
    assert isinstance(look, items.FunctionCallItem) and isinstance(wait, items.FunctionCallItem)
    assert (look.call_id, look.name, look.arguments) == ("call_0", "look", '{"a":1}')
    assert (wait.call_id, wait.name, wait.arguments) == ("call_1", "wait", "{}")
    assert [item.id for item in response.output] == [
        items.item_id(type(item), ID, number) for number, item in enumerate(response.output, 1)
    ]


def test_no_output_is_an_empty_message() -> None:
    response, events = streamed([])
    assert kinds(events) == [
        *("output_item.added", "content_part.added", "output_text.done", "content_part.done"),
        *("output_item.done", "completed"),
    ]
    (message,) = response.output
    assert isinstance(message, items.MessageItem)
    assert message.content == [items.OutputText(text="")]


@pytest.mark.parametrize(
    ("status", "terminal"),
    [("incomplete", "incomplete"), ("failed", "failed"), ("cancelled", "incomplete")],
)
def test_what_was_cut_off_is_incomplete(status: str, terminal: str) -> None:
    response, events = streamed([Delta(0, reasoning="h"), Delta(0, text="ha")], status)
    assert [item.status for item in response.output] == ["completed", "incomplete"]
    assert kinds(events)[-1] == terminal
    nothing, _ = streamed([], status)
    assert nothing.output == []


def test_white_space_around_calls_is_no_message() -> None:
    response, _ = streamed([call(0, "{}", "f"), Delta(0, text="\n"), call(1, "{}", "g")])
    assert [type(item) for item in response.output] == [items.FunctionCallItem] * 2
    response, events = streamed([call(0, "{}", "f"), Delta(0, text="\n"), Delta(0, text=" so")])
    assert text_of(events[-1]["response"]["output"][-1]) == "\n so"


def test_a_call_that_was_over_cannot_go_on() -> None:
    with pytest.raises(Internal):
        streamed([call(0, "{}", "f"), call(1, "{}", "g"), call(0, "}")])


def logprob(text: str) -> TokenLogprob:
    return TokenLogprob(1, text.encode(), -0.5, (TokenAlternative(2, b"z", -1.0),))


def test_log_probabilities_belong_to_text() -> None:
    """Those of held back tokens come with their text; those of reasoning and calls do not."""
    response, events = streamed(
        [
            Delta(0, reasoning="r", logprobs=(logprob("r"),)),
            Delta(0, logprobs=(logprob("a"),)),
            Delta(0, text="ab", logprobs=(logprob("b"),)),
            Delta(0, logprobs=(logprob("</s>"),)),
        ],
        logprobs=True,
    )
    (message,) = response.output[1:]
    assert isinstance(message, items.MessageItem)
    (part,) = message.content
    assert isinstance(part, items.OutputText) and isinstance(part.logprobs, list)
    assert [item.token for item in part.logprobs] == ["a", "b", "</s>"]
    (delta,) = [e for e in events if e["type"] == "response.output_text.delta"]
    assert [item["token"] for item in delta["logprobs"]] == ["a", "b"]


@given(st.text(min_size=1))
def test_hot_frames_are_as_the_generic_ones(text: str) -> None:
    _, events = streamed([Delta(0, text=text)], as_declared=False)
    (data,) = [event for event in events if event["type"].endswith("output_text.delta")]
    kind = {kind.__struct_config__.tag: kind for kind in EVENTS}[data["type"]]
    generic = event_frame(msgspec.convert(data, kind))
    response = new_response(ResponseRequest(input="x"), ID, created_at=1, model="m", store=False)
    stream = ResponseStream(response, first_item=1, with_logprobs=False)
    stream.begin()
    assert stream.delta(Delta(0, text=text)).endswith(generic)


OUTPUT = st.lists(
    st.one_of(
        st.text("ab\n ", min_size=1, max_size=4).map(lambda text: Delta(0, text=text)),
        st.text("rs", min_size=1, max_size=4).map(lambda text: Delta(0, reasoning=text)),
        st.just(Delta(0, tool_calls=(ToolCallDelta(0, "c", "f", "{}"),))),
    ),
    max_size=8,
)


def numbered(deltas: list[Delta]) -> list[Delta]:
    """Calls counted on."""
    found, count = [], 0
    for delta in deltas:
        if delta.tool_calls:
            delta, count = call(count, "{}", "f"), count + 1
        found.append(delta)
    return found


def cut_up(delta: Delta) -> list[Delta]:
    """The same output, a character or a piece at a time."""
    if delta.tool_calls:
        index = delta.tool_calls[0].index
        return [call(index, "", "f"), call(index, "{"), call(index, "}")]
    name = "text" if delta.text else "reasoning"
    return [Delta(0, **{name: letter}) for letter in getattr(delta, name)]


@given(OUTPUT)
def test_any_cut_gives_the_same_items(deltas: list[Delta]) -> None:
    cut = [piece for delta in numbered(deltas) for piece in cut_up(delta)]
    whole, _ = streamed(numbered(deltas), as_declared=False)
    pieces, _ = streamed(cut, as_declared=False)
    assert pieces.output == whole.output


def test_output_goes_back_as_the_message_that_it_was() -> None:
    response, _ = streamed(
        [Delta(0, reasoning="hm"), Delta(0, text="Wait."), call(0, "{}", "f"), call(1, "1", "g")]
    )
    kept = items.decode_output(msgspec.json.encode(response))
    results = [
        items.FunctionCallOutputItem(call_id=f"call_{index}", output=f"r{index}")
        for index in range(2)
    ]
    conversation = conversation_of("Be brief.", kept, results, ["input[0]", "input[1]"], MODEL)
    assert conversation.messages == (
        Message(Role.SYSTEM, ("Be brief.",)),
        Message(
            Role.ASSISTANT,
            ("Wait.",),
            tool_calls=(ToolCall("call_0", "f", "{}"), ToolCall("call_1", "g", "1")),
            reasoning="hm",
        ),
        Message(Role.TOOL, ("r0",), tool_call_id="call_0"),
        Message(Role.TOOL, ("r1",), tool_call_id="call_1"),
    )
    assert conversation.sources == (
        *("instructions", "previous_response_id"),
        *("input[0]", "input[1]"),
    )
