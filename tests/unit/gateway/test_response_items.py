"""Items of the responses endpoint: the SDK's fields are declared, wrong ones are named."""

from __future__ import annotations

import typing

import msgspec
import pytest
from antiphon_core.errors import InvalidArgument
from antiphon_gateway.openai import response_items as items
from antiphon_gateway.openai import responses
from msgspec import Raw
from openai.types import responses as sdk
from openai.types.responses import response_input_item_param as input_items
from openai.types.responses.response_input_param import FunctionCallOutput, ItemReference
from openai.types.shared_params.reasoning import Reasoning

RESPONSE = "resp_" + "0" * 32

SERVED = [
    (items.MessageItem, sdk.EasyInputMessageParam),
    (items.MessageItem, input_items.Message),
    (items.MessageItem, sdk.ResponseOutputMessageParam),
    (items.FunctionCallItem, sdk.ResponseFunctionToolCallParam),
    (items.FunctionCallOutputItem, FunctionCallOutput),
    (items.ReasoningItem, sdk.ResponseReasoningItemParam),
    (items.ItemReference, ItemReference),
    (items.InputText, sdk.ResponseInputTextParam),
    (items.InputImage, sdk.ResponseInputImageParam),
    (items.AudioPart, sdk.ResponseInputAudioParam),
    (items.OutputText, sdk.ResponseOutputTextParam),
    (items.Refusal, sdk.ResponseOutputRefusalParam),
    (responses.FunctionTool, sdk.FunctionToolParam),
    (responses.NamedFunction, sdk.ToolChoiceFunctionParam),
    (responses.AllowedTools, sdk.ToolChoiceAllowedParam),
    (responses.JsonSchemaFormat, sdk.ResponseFormatTextJSONSchemaConfigParam),
    (responses.TextConfig, sdk.ResponseTextConfigParam),
    (responses.Reasoning, Reasoning),
]


@pytest.mark.parametrize(("wire", "params"), SERVED)
def test_every_field_of_the_sdk_is_declared(wire: type, params: type) -> None:
    """Undeclared fields are refused, so what the SDK's own types hold must be declared."""
    declared = {field.encode_name for field in msgspec.structs.fields(wire)} | {"type"}
    assert set(typing.get_type_hints(params)) <= declared


def decode(*texts: str) -> list[items.InputItem]:
    return items.decode_items([Raw(text.encode()) for text in texts], "input")


def test_a_message_needs_no_type_and_a_reference_only_an_id() -> None:
    assert decode(
        '{"role":"user","content":"a"}',
        '{"type":null,"id":"msg_1"}',
        '{"type":"message","role":"developer","content":[{"type":"input_text","text":"b"}]}',
    ) == [
        items.MessageItem(role="user", content="a"),
        items.ItemReference(id="msg_1"),
        items.MessageItem(role="developer", content=[items.InputText(text="b")]),
    ]


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ('{"type":"web_search_call","id":"x"}', "input[0].type", "allowed: message, function_call"),
        ('{"type":"message","content":"a"}', "input[0].role", "required"),
        ('{"content":"a"}', "input[0].role", "required"),
        (
            '{"role":"wizard","content":"a"}',
            "input[0].role",
            "allowed: assistant, developer, system, user",
        ),
        ('{"role":"user","content":3}', "input[0].content", "expected"),
        ('{"role":"user","content":"a","x":1}', "input[0].x", "unknown field input[0].x"),
        (
            '{"role":"user","content":[{"type":"input_file","file_id":"f"}]}',
            "input[0].content[0].type",
            "allowed: input_text, input_image, input_audio, output_text, refusal",
        ),
        (
            '{"role":"user","content":[{"type":"input_text","text":"a","y":1}]}',
            "input[0].content[0].y",
            "unknown field",
        ),
        ('{"type":"function_call","call_id":"c","name":"f"}', "input[0].arguments", "required"),
        ('{"type":"function_call_output","call_id":"c","output":1}', "input[0].output", "expected"),
        ('{"type":"reasoning","content":[{"text":1}]}', "input[0].content[0].text", "expected"),
        ("3", "input[0]", "expected `object`"),
        ('{"type":7}', "input[0].type", "expected"),
    ],
)
def test_a_wrong_item_is_named(text: str, field: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=r"input\[0\]") as error:
        decode(text)
    assert error.value.field == field
    assert said in error.value.message


def test_input_items_are_completed() -> None:
    """Each gets an id of its own, a status and parts; a second use of an id gets a new one."""
    completed = items.complete_items(
        [
            items.MessageItem(role="user", content="a"),
            items.MessageItem(role="assistant", content="b", id="msg_mine", status="incomplete"),
            items.FunctionCallItem(call_id="c", name="f", arguments="{}", id="msg_mine"),
        ],
        RESPONSE,
    )
    first, second, third = completed
    assert (first.id, first.status) == (f"msg_{'0' * 32}0000", "completed")
    assert (second.id, second.status) == ("msg_mine", "incomplete")
    assert third.id == f"fc_{'0' * 32}0002"
    assert isinstance(first, items.MessageItem) and first.content == [items.InputText(text="a")]
    assert isinstance(second, items.MessageItem) and second.content == [items.OutputText(text="b")]
    kept = msgspec.json.encode(completed)
    assert items.decode_input(kept) == completed


def test_an_id_tells_the_response_of_its_item() -> None:
    identifier = items.item_id(items.ReasoningItem, RESPONSE, 300)
    assert identifier == f"rs_{'0' * 32}012c"
    assert items.response_of_item(identifier) == RESPONSE
