"""Items of the responses endpoint: what requests bring, what the model makes, what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from antiphon_core.errors import InvalidArgument
from msgspec import UNSET, Raw, Struct, UnsetType, field

from antiphon_gateway.openai.chat import FunctionName, InputAudio
from antiphon_gateway.openai.chat_output import TokenLogprob
from antiphon_gateway.openai.decode import validation_error

Status = Literal["in_progress", "completed", "incomplete"]
Phase = Literal["commentary", "final_answer"]


class _Wire(Struct, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """Undeclared fields are refused; declared ones of type Any have no effect on the output."""


class InputText(_Wire, tag="input_text"):
    """Text for the model."""

    text: str
    prompt_cache_breakpoint: Any = UNSET


class InputImage(_Wire, tag="input_image"):
    """A picture as a data URL."""

    image_url: str | UnsetType | None = UNSET
    detail: Literal["low", "high", "auto", "original"] | UnsetType | None = UNSET
    file_id: str | UnsetType | None = UNSET
    """Refused: uploaded files are not read."""
    prompt_cache_breakpoint: Any = UNSET


class AudioPart(_Wire, tag="input_audio"):
    """A recording as base64."""

    input_audio: InputAudio


class OutputText(_Wire, tag="output_text"):
    """Text that the model wrote."""

    text: str
    annotations: list[Any] = field(default_factory=list)
    logprobs: list[TokenLogprob] | UnsetType | None = UNSET


class Refusal(_Wire, tag="refusal"):
    """A refusal of a former answer; goes back into the prompt as text."""

    refusal: str


class ReasoningText(_Wire, tag="reasoning_text"):
    """What the model thought."""

    text: str


class SummaryText(_Wire, tag="summary_text"):
    """A summary of reasoning, which other servers give in its place."""

    text: str


ContentPart = InputText | InputImage | AudioPart | OutputText | Refusal
OutputPart = OutputText | ReasoningText


class MessageItem(_Wire, tag="message"):
    """A message of one speaker."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPart]
    id: str | UnsetType | None = UNSET
    status: Status | UnsetType | None = UNSET
    phase: Phase | UnsetType | None = UNSET


class FunctionCallItem(_Wire, tag="function_call"):
    """A call that the model made."""

    call_id: str
    name: FunctionName
    arguments: str
    id: str | UnsetType | None = UNSET
    status: Status | UnsetType | None = UNSET
    is_async: Any = field(default=UNSET, name="async")
    caller: Any = UNSET
    namespace: UnsetType | None = UNSET


class FunctionCallOutputItem(_Wire, tag="function_call_output"):
    """The result of a call."""

    call_id: str
    output: str | list[InputText | InputImage]
    id: str | UnsetType | None = UNSET
    status: Status | UnsetType | None = UNSET
    caller: Any = UNSET
    name: str | UnsetType | None = UNSET
    namespace: UnsetType | None = UNSET
    created_by: Any = UNSET


class ReasoningItem(_Wire, tag="reasoning"):
    """A trace of reasoning; its text is plain, so nothing is encrypted."""

    id: str | UnsetType | None = UNSET
    summary: list[SummaryText] = field(default_factory=list)
    content: list[ReasoningText] | UnsetType | None = UNSET
    encrypted_content: str | UnsetType | None = UNSET
    status: Status | UnsetType | None = UNSET


class ItemReference(_Wire, tag="item_reference"):
    """An item of a kept response by its id."""

    id: str


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem
InputItem = Item | ItemReference

_KINDS: dict[str, Any] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
}
_ID_PREFIXES: dict[type, str] = {
    MessageItem: "msg",
    FunctionCallItem: "fc",
    FunctionCallOutputItem: "fco",
    ReasoningItem: "rs",
}


class _Kind(Struct):
    type: str | None = None
    role: str | None = None
    id: str | None = None


def decode_items(raws: Sequence[Raw], path: str) -> list[InputItem]:
    """The items of a request; a message may leave out its type.

    Args:
        raws: JSON texts.
        path: of the list, for errors.

    Raises:
        InvalidArgument: naming the item or its field, and what is allowed.
    """
    return [_decode_item(raw, f"{path}[{index}]") for index, raw in enumerate(raws)]


def _decode_item(raw: Raw, path: str) -> InputItem:
    try:
        kind = msgspec.json.decode(raw, type=_Kind)
    except msgspec.ValidationError as error:
        raise validation_error(error, _Kind, path) from None
    is_reference = kind.id is not None and kind.role is None
    name = kind.type or ("item_reference" if is_reference else "message")
    wire_type = _KINDS.get(name)
    if wire_type is None:
        raise InvalidArgument(
            f"{path}.type: items of type {name[:64]!r} are not served here; "
            f"allowed: {', '.join(_KINDS)}",
            reason="UNSUPPORTED_OPTION",
            field=f"{path}.type",
            allowed=list(_KINDS),
        )
    if kind.type is None:
        # Also where it is null, which the tag would not take.
        fields = msgspec.json.decode(raw, type=dict[str, Raw])
        raw = Raw(msgspec.json.encode({**fields, "type": name}))
    try:
        item: InputItem = msgspec.json.decode(raw, type=wire_type)
    except msgspec.ValidationError as error:
        raise validation_error(error, wire_type, path) from None
    return item


class _Output(Struct):
    output: list[Item]


def decode_input(data: bytes) -> list[Item]:
    """The items that a kept request brought."""
    return msgspec.json.decode(data, type=list[Item])


def decode_output(data: bytes) -> list[Item]:
    """The output of a kept response object."""
    return msgspec.json.decode(data, type=_Output).output


def item_id(kind: type, response_id: str, number: int) -> str:
    """The id of an item, which tells the response that it belongs to.

    Args:
        kind: type of the item.
        response_id: of the response that it is input or output of.
        number: of the item in the response, input and output counted on.
    """
    return f"{_ID_PREFIXES[kind]}_{response_id.removeprefix('resp_')}{number:04x}"


def response_of_item(identifier: str) -> str:
    """The id of the response that an item belongs to, if the item's id is one of ours."""
    return "resp_" + identifier.partition("_")[2][:-4]


def complete_items(items: Sequence[Item], response_id: str) -> list[Item]:
    """Input items as they are listed later: each with an id of its own, a status and parts."""
    seen: set[str] = set()
    for number, item in enumerate(items):
        if not item.id or item.id in seen:
            item.id = item_id(type(item), response_id, number)
        seen.add(item.id)
        item.status = item.status or "completed"
        if isinstance(item, MessageItem) and isinstance(item.content, str):
            text = item.content
            item.content = [
                OutputText(text=text) if item.role == "assistant" else InputText(text=text)
            ]
    return list(items)
