"""What a client may ask of one response, and the snapshot that the response runs on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from antiphon_gateway.realtime import codec, prompting
from antiphon_gateway.realtime.config import (
    FunctionTool,
    OutputLimit,
    Reasoning,
    SessionConfig,
    ToolChoice,
    check_consistency,
)
from antiphon_gateway.realtime.conversation import Entry
from antiphon_gateway.realtime.errors import ProtocolError
from antiphon_gateway.realtime.events import InputEntry
from antiphon_gateway.realtime.formats import WireFormat
from antiphon_gateway.realtime.items import (
    InputAudio,
    ItemReference,
    MessageItem,
    check_created_item,
)
from antiphon_gateway.realtime.state import SessionState

MAX_METADATA = 16


class OutputChange(Struct, frozen=True, forbid_unknown_fields=True):
    """How this response sounds."""

    format: WireFormat | None = None
    voice: Any = None


class AudioChange(Struct, frozen=True, forbid_unknown_fields=True):
    """Audio settings of this response."""

    output: OutputChange | None = None


class ResponseParams(Struct, frozen=True, forbid_unknown_fields=True):
    """The ``response`` object of response.create; None takes the session's value."""

    conversation: str | None = None
    input: list[InputEntry] | None = None
    instructions: str | None = None
    output_modalities: list[Literal["text", "audio"]] | None = None
    audio: AudioChange | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: OutputLimit | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
            Meta(max_length=MAX_METADATA),
        ]
        | None
    ) = None
    reasoning: Reasoning | None = None
    prompt: dict[str, Any] | None = None

    @property
    def in_conversation(self) -> bool:
        """Whether the response writes the default conversation."""
        return self.conversation != "none"


def parse(raw: dict[str, Any] | None) -> ResponseParams:
    """The parameters of a response.create.

    Raises:
        ProtocolError: naming the field.
    """
    params = codec.convert(raw or {}, ResponseParams, "response")
    if params.conversation not in (None, "auto", "none"):
        raise ProtocolError(
            "response.conversation must be 'auto' or 'none'", param="response.conversation"
        )
    return params


def snapshot(config: SessionConfig, params: ResponseParams) -> SessionConfig:
    """The configuration that one response runs on.

    Raises:
        ProtocolError: the overrides do not fit together.
    """
    names = (
        "instructions",
        "output_modalities",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_output_tokens",
        "temperature",
        "reasoning",
    )
    changes = {name: getattr(params, name) for name in names if getattr(params, name) is not None}
    change = params.audio.output if params.audio else None
    if change is not None:
        output = config.audio.output
        voice = change.voice.get("id") if isinstance(change.voice, dict) else change.voice
        if voice is not None and not isinstance(voice, str):
            raise ProtocolError(
                "response.audio.output.voice must be a name or {id}",
                param="response.audio.output.voice",
            )
        output = replace(output, format=change.format or output.format, voice=voice or output.voice)
        changes["audio"] = replace(config.audio, output=output)
    merged = replace(config, **changes)
    check_consistency(merged, "response")
    return merged


def input_entries(params: ResponseParams, state: SessionState) -> list[Entry]:
    """The history that a response reads: its own input, or the whole conversation.

    Raises:
        ProtocolError: an unknown reference or an item that cannot be input.
    """
    if params.input is None:
        return prompting.history(state)
    entries: list[Entry] = []
    for index, element in enumerate(params.input):
        path = f"response.input[{index}]"
        if isinstance(element, ItemReference):
            found = state.conversation.get(element.id)
            if found is None:
                raise ProtocolError(
                    f"{path}.id: there is no item {element.id!r}", param=f"{path}.id"
                )
            entries.append(found)
            continue
        check_created_item(element, path)
        if isinstance(element, MessageItem) and any(
            isinstance(part, InputAudio) and part.transcript is None for part in element.content
        ):
            raise ProtocolError(
                f"{path}: audio without transcript cannot be input here; create the item in the "
                "conversation and refer to it",
                param=path,
            )
        entries.append(Entry(element))
    return entries


def audio_echo(settings: SessionConfig) -> dict[str, Any]:
    """The ``audio`` object of a response."""
    output = settings.audio.output
    return {"output": {"format": msgspec.to_builtins(output.format), "voice": output.voice or None}}
