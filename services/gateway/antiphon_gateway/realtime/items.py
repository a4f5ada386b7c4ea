"""Conversation items as they travel on the wire, and the rules for items that clients create."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon_gateway.realtime.errors import ProtocolError

Status = Literal["in_progress", "completed", "incomplete"]
Role = Literal["system", "user", "assistant"]

LONGEST_ITEM_ID = 64


class InputText(Struct, frozen=True, tag="input_text", tag_field="type"):
    """Text of a user or system message."""

    text: str


class InputAudio(Struct, frozen=True, tag="input_audio", tag_field="type"):
    """Speech of the user; audio is present in creation and in retrieval only."""

    transcript: str | None = None
    audio: bytes | UnsetType = UNSET


class InputImage(Struct, frozen=True, tag="input_image", tag_field="type"):
    """A picture as a data URL."""

    image_url: str
    detail: Literal["auto", "low", "high"] = "auto"


class OutputText(Struct, frozen=True, tag="output_text", tag_field="type"):
    """Written output of the assistant."""

    text: str


class OutputAudio(Struct, frozen=True, tag="output_audio", tag_field="type"):
    """Spoken output of the assistant; audio is present in retrieval only."""

    transcript: str | None = None
    audio: bytes | UnsetType = UNSET


Part = InputText | InputAudio | InputImage | OutputText | OutputAudio


class MessageItem(Struct, frozen=True, tag="message", tag_field="type", kw_only=True):
    """A message of one speaker."""

    id: str | None = None
    object: Literal["realtime.item"] = "realtime.item"
    status: Status = "completed"
    role: Role
    content: list[Part]


class FunctionCallItem(Struct, frozen=True, tag="function_call", tag_field="type", kw_only=True):
    """A call that the model makes."""

    id: str | None = None
    object: Literal["realtime.item"] = "realtime.item"
    status: Status = "completed"
    call_id: str | None = None
    name: str
    arguments: str


class FunctionCallOutputItem(
    Struct, frozen=True, tag="function_call_output", tag_field="type", kw_only=True
):
    """The result that the client returns for a call."""

    id: str | None = None
    object: Literal["realtime.item"] = "realtime.item"
    status: Status = "completed"
    call_id: str
    output: str


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem


class ItemReference(Struct, frozen=True, tag="item_reference", tag_field="type"):
    """Names an item of the conversation as input of a response."""

    id: str


_PARTS_OF_ROLE: dict[str, tuple[type, ...]] = {
    "system": (InputText,),
    "user": (InputText, InputAudio, InputImage),
    "assistant": (OutputText,),
}
_PART_NAMES: dict[str, str] = {
    "system": "input_text",
    "user": "input_text, input_audio, input_image",
    "assistant": "output_text",
}


def check_created_item(item: Item, path: str) -> None:
    """Refuses an item that a client may not create.

    Args:
        item: the item as received.
        path: where it stands in the event, for the error's ``param``.

    Raises:
        ProtocolError: ``invalid_value`` naming the field and the allowed values.
    """
    if item.id is not None and not 1 <= len(item.id) <= LONGEST_ITEM_ID:
        raise ProtocolError(
            f"{path}.id must have 1 to {LONGEST_ITEM_ID} characters", param=f"{path}.id"
        )
    if isinstance(item, FunctionCallItem) and not item.call_id:
        raise ProtocolError(
            f"{path}.call_id is required",
            code="missing_required_parameter",
            param=f"{path}.call_id",
        )
    if not isinstance(item, MessageItem):
        return
    if not item.content:
        raise ProtocolError(f"{path}.content needs at least one part", param=f"{path}.content")
    for index, part in enumerate(item.content):
        where = f"{path}.content[{index}]"
        if not isinstance(part, _PARTS_OF_ROLE[item.role]):
            raise ProtocolError(
                f"{where}.type is not possible in a message of role {item.role}; "
                f"allowed: {_PART_NAMES[item.role]}",
                param=f"{where}.type",
            )
        if isinstance(part, InputAudio) and not part.audio and part.transcript is None:
            raise ProtocolError(f"{where}.audio is required", param=f"{where}.audio")
        if isinstance(part, InputImage) and not part.image_url.startswith("data:image/"):
            raise ProtocolError(
                f"{where}.image_url must be a data URL of an image", param=f"{where}.image_url"
            )
