"""Between the wire's messages and the domain's plain data. Pure functions, no decisions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from antiphon.llm.v1 import chat_pb2, generate_pb2, llm_service_pb2
from antiphon_core.errors import AntiphonError, InvalidArgument
from antiphon_core.rpc.context import RequestContext
from antiphon_core.rpc.errors import to_status
from google.protobuf.duration_pb2 import Duration

from antiphon_llm.front.conversation import Conversation, Message, ToolCall
from antiphon_llm.front.events import (
    Accepted,
    ChoiceFinished,
    Completed,
    Delta,
    Event,
    TokenLogprob,
)
from antiphon_llm.front.requests import (
    ChatInput,
    GenerationRequest,
    OutputOptions,
    PromptInput,
    RequestScope,
    SamplingOptions,
    StopOptions,
    ToolOptions,
)
from antiphon_llm.front.service import ModelCard

_ROLES = {
    chat_pb2.CHAT_ROLE_SYSTEM: "system",
    chat_pb2.CHAT_ROLE_USER: "user",
    chat_pb2.CHAT_ROLE_ASSISTANT: "assistant",
    chat_pb2.CHAT_ROLE_TOOL: "tool",
    chat_pb2.CHAT_ROLE_DEVELOPER: "developer",
}
_CHOICES = {
    chat_pb2.ToolChoice.MODE_NONE: "none",
    chat_pb2.ToolChoice.MODE_AUTO: "auto",
    chat_pb2.ToolChoice.MODE_REQUIRED: "required",
    chat_pb2.ToolChoice.MODE_NAMED: "named",
}
_MODALITIES = {
    generate_pb2.MODALITY_TEXT: "text",
    generate_pb2.MODALITY_AUDIO: "audio",
    generate_pb2.MODALITY_IMAGE: "image",
}
_REASONS = {
    "stop": generate_pb2.FINISH_REASON_STOP,
    "length": generate_pb2.FINISH_REASON_LENGTH,
    "context": generate_pb2.FINISH_REASON_CONTEXT,
    "cancelled": generate_pb2.FINISH_REASON_CANCELLED,
    "error": generate_pb2.FINISH_REASON_ERROR,
}


def generation_request(message: generate_pb2.GenerateRequest) -> GenerationRequest:
    """A request in domain terms.

    Raises:
        InvalidArgument: no input, media that no text model reads, or malformed JSON.
    """
    return GenerationRequest(
        input=_prompt(message),
        model=message.model,
        sampling=_sampling(message.sampling),
        stop=StopOptions(
            max_tokens=_optional(message.stop, "max_tokens"),
            strings=list(message.stop.strings),
            token_ids=list(message.stop.token_ids),
            ignore_eos=message.stop.ignore_eos,
            include_stop=message.stop.include_stop,
        ),
        choice_count=message.choice_count or 1,
        output=OutputOptions(
            logprobs=_optional(message.output, "logprobs"),
            prompt_logprobs=_optional(message.output, "prompt_logprobs"),
            token_ids=message.output.token_ids,
            modalities=[_MODALITIES.get(kind, str(kind)) for kind in message.output.modalities],
        ),
        constraint=message.constraint.WhichOneof("kind") or "",
        cache=message.cache_mode != generate_pb2.CACHE_MODE_OFF,
    )


def chat_input(message: generate_pb2.ChatInput) -> ChatInput:
    """Messages, tools and template variables.

    Raises:
        InvalidArgument: media parts, or malformed JSON.
    """
    choice = _CHOICES.get(message.tool_choice.mode, "auto" if message.tools else "none")
    return ChatInput(
        conversation=Conversation(
            messages=[_message(place, item) for place, item in enumerate(message.messages)],
            template_kwargs=_template_kwargs(message.template_kwargs_json),
            continue_final_message=message.continue_final_message,
            reasoning_effort=message.reasoning_effort,
        ),
        tools=ToolOptions(count=len(message.tools), choice=choice),
        thinking_budget=_optional(message, "thinking_budget"),
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
        request_id=message.stream_id,
        deadline=time.time() + seconds if message.HasField("timeout") else 0.0,
        tenant=message.tenant or context.tenant,
        interactive=not message.batch,
        traceparent=message.traceparent or context.traceparent,
    )


def response(event: Event) -> generate_pb2.GenerateResponse:
    """One event as a message."""
    if isinstance(event, Delta):
        return _delta_response(event)
    if isinstance(event, Accepted):
        return generate_pb2.GenerateResponse(accepted=_accepted(event))
    if isinstance(event, ChoiceFinished):
        return generate_pb2.GenerateResponse(finished=_finished(event))
    return generate_pb2.GenerateResponse(completed=_completed(event))


def error_event(stream_id: str, error: AntiphonError) -> generate_pb2.GenerateManyEvent:
    """The end of a multiplexed request that failed."""
    return generate_pb2.GenerateManyEvent(stream_id=stream_id, error=to_status(error))


def model(card: ModelCard) -> llm_service_pb2.Model:
    """The served model."""
    return llm_service_pb2.Model(
        id=card.name,
        architecture=card.architecture,
        context_limit=card.context_limit,
        vocabulary_size=card.vocabulary_size,
        input_modalities=[generate_pb2.MODALITY_TEXT],
        output_modalities=[generate_pb2.MODALITY_TEXT],
        quantisation=card.quantisation,
        tokenizer_fingerprint=card.tokenizer_fingerprint,
        fingerprint=card.fingerprint,
        chat=card.chat,
        parameter_count=card.parameter_count,
        aliases=card.aliases,
        created_at_seconds=int(card.loaded_at),
    )


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


def _sampling(message: generate_pb2.SamplingParams) -> SamplingOptions:
    return SamplingOptions(
        temperature=_decimal(message, "temperature"),
        top_k=_optional(message, "top_k"),
        top_p=_decimal(message, "top_p"),
        min_p=_decimal(message, "min_p"),
        repetition_penalty=_decimal(message, "repetition_penalty"),
        presence_penalty=_decimal(message, "presence_penalty"),
        frequency_penalty=_decimal(message, "frequency_penalty"),
        logit_bias={index: _shortest(bias) for index, bias in message.logit_bias.items()},
        seed=_optional(message, "seed"),
        min_tokens=_optional(message, "min_tokens"),
        draft_depth=_optional(message, "draft_depth"),
    )


def _optional(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _decimal(message: Any, name: str) -> float | None:
    value = _optional(message, name)
    return None if value is None else _shortest(value)


def _shortest(value: float) -> float:
    """The decimal that the caller wrote: the wire's 32 bits turn 0.01 into a smaller number."""
    return float(f"{value:.7g}")


def _message(place: int, message: chat_pb2.ChatMessage) -> Message:
    texts = []
    for index, part in enumerate(message.parts):
        kind = part.WhichOneof("part")
        if kind is None:
            field = f"chat.messages[{place}].parts[{index}]"
            raise InvalidArgument(f"{field} is empty", reason="MISSING_FIELD", field=field)
        if kind != "text":
            field = f"chat.messages[{place}].parts[{index}].{kind}"
            raise InvalidArgument(
                f"{field}: the model reads text only",
                reason="UNSUPPORTED_MODALITY",
                field=field,
                allowed=("text",),
            )
        texts.append(part.text)
    return Message(
        role=_ROLES.get(message.role, ""),
        texts=texts,
        name=message.name,
        tool_call_id=message.tool_call_id,
        tool_calls=[
            ToolCall(call.id, call.name, call.arguments_json) for call in message.tool_calls
        ],
        reasoning=message.reasoning,
    )


def _template_kwargs(text: str) -> dict[str, Any]:
    if not text:
        return {}
    field = "chat.template_kwargs_json"
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{field} is not valid JSON: {error}", field=field) from None
    if not isinstance(values, dict):
        raise InvalidArgument(f"{field} must be a JSON object", field=field)
    return values


def _accepted(event: Accepted) -> generate_pb2.GenerateAccepted:
    return generate_pb2.GenerateAccepted(
        request_id=event.request_id,
        model=event.model,
        fingerprint=event.fingerprint,
        prompt_tokens=event.prompt_tokens,
        prompt_logprobs=_logprobs(event.prompt_logprobs),
    )


def _delta_response(event: Delta) -> generate_pb2.GenerateResponse:
    """Made once a token, so in place and without what is empty."""
    message = generate_pb2.GenerateResponse()
    delta = message.delta
    delta.SetInParent()
    delta.choice = event.choice
    delta.text = event.text
    delta.token_count = event.token_count
    if event.token_ids:
        delta.token_ids.extend(event.token_ids)
    if event.logprobs:
        delta.logprobs.extend(_logprobs(event.logprobs))
    return message


def _logprobs(items: Iterable[TokenLogprob]) -> list[generate_pb2.TokenLogprob]:
    return [
        generate_pb2.TokenLogprob(
            token_id=item.token_id,
            token=item.token,
            logprob=item.logprob,
            alternatives=[
                generate_pb2.TokenAlternative(
                    token_id=other.token_id, token=other.token, logprob=other.logprob
                )
                for other in item.alternatives
            ],
        )
        for item in items
    ]


def _finished(event: ChoiceFinished) -> generate_pb2.ChoiceFinished:
    return generate_pb2.ChoiceFinished(
        choice=event.choice,
        reason=_REASONS[event.reason],
        stop_string=event.stop_string,
        stop_token_id=event.stop_token_id,
        error=None if event.error is None else to_status(event.error),
    )


def _completed(event: Completed) -> generate_pb2.GenerateCompleted:
    return generate_pb2.GenerateCompleted(
        usage=generate_pb2.Usage(
            prompt_tokens=event.usage.prompt_tokens,
            cached_tokens=event.usage.cached_tokens,
            output_tokens=event.usage.output_tokens,
        ),
        timings=generate_pb2.Timings(
            queued=_duration(event.timings.queued),
            prefill=_duration(event.timings.prefill),
            decode=_duration(event.timings.decode),
        ),
    )


def _duration(seconds: float) -> Duration:
    nanos = max(0, round(seconds * 1e9))
    return Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)
