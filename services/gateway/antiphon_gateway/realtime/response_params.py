"""What a client may ask of one response, and the snapshot that the response runs on."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from antiphon_gateway.domain.generation import (
    ChatInput,
    Sampling,
    Tool,
    ToolMode,
)
from antiphon_gateway.domain.generation import ToolChoice as BackendChoice
from antiphon_gateway.domain.speech import SpeechConfig
from antiphon_gateway.realtime import codec, history
from antiphon_gateway.realtime.commands import ResponsePlan
from antiphon_gateway.realtime.config import (
    FunctionTool,
    NamedTool,
    OutputLimit,
    SessionConfig,
    ToolChoice,
    WireFormat,
    backend_format,
    check_consistency,
)
from antiphon_gateway.realtime.conversation import Conversation, Entry
from antiphon_gateway.realtime.errors import ProtocolError
from antiphon_gateway.realtime.events import InputEntry
from antiphon_gateway.realtime.items import (
    InputAudio,
    ItemReference,
    MessageItem,
    check_created_item,
)
from antiphon_gateway.realtime.state import ActiveResponse

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
    reasoning: dict[str, Any] | None = None
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


def input_entries(params: ResponseParams, conversation: Conversation) -> list[Entry]:
    """The history that a response reads: its own input, or the whole conversation.

    Raises:
        ProtocolError: an unknown reference or an item that cannot be input.
    """
    if params.input is None:
        return list(conversation)
    entries: list[Entry] = []
    for index, element in enumerate(params.input):
        path = f"response.input[{index}]"
        if isinstance(element, ItemReference):
            found = conversation.get(element.id)
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


def plan(response: ActiveResponse) -> ResponsePlan:
    """Everything that the reply runs on."""
    settings = response.settings
    form = backend_format(settings.audio.output.format)
    limit = settings.max_output_tokens
    speech = None
    if response.speaks:
        speech = SpeechConfig(
            voice=settings.audio.output.voice,
            output_format=form,
            speed=settings.audio.output.speed,
        )
    return ResponsePlan(
        response_id=response.id,
        model=settings.model,
        chat=ChatInput(
            messages=history.render(settings.instructions, response.history),
            tools=[_tool(tool) for tool in settings.tools],
            tool_choice=_choice(settings) if settings.tools else None,
        ),
        sampling=Sampling(temperature=settings.temperature),
        max_tokens=limit if isinstance(limit, int) else None,
        speech=speech,
        output_format=form,
    )


def shorten(response: ActiveResponse, limit: int, observed: int) -> bool:
    """Drops the oldest history of a response whose prompt was too long.

    Args:
        limit: context limit in tokens.
        observed: tokens of the refused prompt.

    Returns:
        Whether anything could be dropped.
    """
    truncation = response.settings.truncation
    if truncation == "disabled" or len(response.history) < 2 or observed <= 0:
        return False
    retained = 0.8 if isinstance(truncation, str) else truncation.retention_ratio
    share = min(0.95, limit / observed) * retained
    kept = list(history.newest_within(response.history, share))
    if len(kept) == len(response.history):
        return False
    response.history = kept
    return True


def _tool(tool: FunctionTool) -> Tool:
    parameters = json.dumps(tool.parameters) if tool.parameters else ""
    return Tool(name=tool.name, description=tool.description or "", parameters=parameters)


def _choice(settings: SessionConfig) -> BackendChoice:
    choice = settings.tool_choice
    single = not settings.parallel_tool_calls
    if isinstance(choice, NamedTool):
        return BackendChoice(ToolMode.NAMED, name=choice.name, single_call=single)
    return BackendChoice(ToolMode(choice), single_call=single)


def audio_echo(settings: SessionConfig) -> dict[str, Any]:
    """The ``audio`` object of a response."""
    output = settings.audio.output
    return {"output": {"format": msgspec.to_builtins(output.format), "voice": output.voice or None}}
