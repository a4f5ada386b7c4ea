"""Requests and their scopes."""

from __future__ import annotations

import time

from antiphon.llm.v1 import generate_pb2, llm_service_pb2
from antiphon_core.errors import InvalidArgument
from antiphon_core.rpc.context import RequestContext

from antiphon_llm.front.constraints import ConstraintOptions
from antiphon_llm.front.requests import (
    ChatInput,
    GenerationRequest,
    OutputOptions,
    PromptInput,
    RequestScope,
    StopOptions,
)

from .chat import chat_input
from .common import optional
from .sampling import sampling_options

_MODALITIES = {
    generate_pb2.MODALITY_TEXT: "text",
    generate_pb2.MODALITY_AUDIO: "audio",
    generate_pb2.MODALITY_IMAGE: "image",
}


def generation_request(message: generate_pb2.GenerateRequest) -> GenerationRequest:
    """A request in domain terms.

    Raises:
        InvalidArgument: no input, media that no text model reads, or malformed JSON.
    """
    return GenerationRequest(
        input=_prompt(message),
        model=message.model,
        sampling=sampling_options(message.sampling),
        stop=StopOptions(
            max_tokens=optional(message.stop, "max_tokens"),
            strings=list(message.stop.strings),
            token_ids=list(message.stop.token_ids),
            ignore_eos=message.stop.ignore_eos,
            include_stop=message.stop.include_stop,
        ),
        choice_count=message.choice_count or 1,
        output=OutputOptions(
            logprobs=optional(message.output, "logprobs"),
            prompt_logprobs=optional(message.output, "prompt_logprobs"),
            token_ids=message.output.token_ids,
            modalities=[_MODALITIES.get(kind, str(kind)) for kind in message.output.modalities],
        ),
        constraint=_constraint(message.constraint),
        cache=message.cache_mode != generate_pb2.CACHE_MODE_OFF,
    )


def tokenize_input(message: llm_service_pb2.TokenizeRequest) -> ChatInput | str:
    """The input of Tokenize.

    Raises:
        InvalidArgument: no input.
    """
    kind = message.WhichOneof("input")
    if kind == "chat":
        return chat_input(message.chat)
    if kind == "text":
        return message.text
    raise _missing_input()


def embed_inputs(message: llm_service_pb2.EmbedRequest) -> list[str | list[int]]:
    """Texts and id lists; an input of neither form becomes the empty text."""
    return [
        list(item.tokens.ids) if item.WhichOneof("input") == "tokens" else item.text
        for item in message.inputs
    ]


def scope_of_call(context: RequestContext) -> RequestScope:
    """The scope of a call of its own."""
    return RequestScope(
        request_id=context.request_id,
        deadline=context.deadline or 0.0,
        tenant=context.tenant,
        interactive=context.priority != "batch",
        traceparent=context.traceparent,
    )


def scope_of_start(message: generate_pb2.StartGenerate, context: RequestContext) -> RequestScope:
    """The scope of one request of a multiplexed stream; the stream fills in what it leaves."""
    seconds = message.timeout.seconds + message.timeout.nanos / 1e9
    return RequestScope(
        request_id=message.request_id or message.stream_id,
        deadline=time.time() + seconds if message.HasField("timeout") else 0.0,
        tenant=message.tenant or context.tenant,
        interactive=not message.batch,
        traceparent=message.traceparent or context.traceparent,
    )


def _constraint(message: generate_pb2.Constraint) -> ConstraintOptions | None:
    kind = message.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "json_object" and not message.json_object:
        raise InvalidArgument(
            "constraint.json_object is false; leave it out or set it to true",
            field="constraint.json_object",
        )
    source = "" if kind in ("json_object", "choice") else getattr(message, kind)
    return ConstraintOptions(kind, source, tuple(message.choice.values), message.strict)


def _prompt(message: generate_pb2.GenerateRequest) -> PromptInput:
    kind = message.WhichOneof("input")
    if kind == "chat":
        return chat_input(message.chat)
    if kind == "text":
        return message.text
    if kind == "tokens":
        return list(message.tokens.ids)
    raise _missing_input()


def _missing_input() -> InvalidArgument:
    return InvalidArgument(
        "input is required: chat, text or tokens", reason="MISSING_FIELD", field="input"
    )
