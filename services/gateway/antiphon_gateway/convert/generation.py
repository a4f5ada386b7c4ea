"""Generation: domain requests to protobuf, protobuf responses to domain events."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.llm.v1 import chat_pb2, generate_pb2, llm_service_pb2
from antiphon_core.request_context import RequestContext
from antiphon_core.rpc.errors import from_status

from antiphon_gateway.convert.common import (
    audio_format_to_proto,
    code_format_from_proto,
    milliseconds_to_duration,
    seconds,
)
from antiphon_gateway.domain import catalog, generation
from antiphon_gateway.domain.speech import AudioFormat

_ROLES = {role: chat_pb2.ChatRole.Value(f"CHAT_ROLE_{role.name}") for role in generation.Role}
_FINISH_REASONS = {
    generate_pb2.FinishReason.Value(f"FINISH_REASON_{reason.name}"): reason
    for reason in generation.FinishReason
}
_MODALITIES = {
    generate_pb2.Modality.Value(f"MODALITY_{modality.name}"): modality
    for modality in generation.Modality
}
_SPEECH = (generate_pb2.MODALITY_TEXT, generate_pb2.MODALITY_AUDIO)
_OPTIONAL_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "min_tokens",
    "no_repeat_ngram_size",
    "no_repeat_ngram_window",
    "draft_depth",
)


def request_to_proto(request: generation.GenerateRequest) -> generate_pb2.GenerateRequest:
    """The whole request."""
    message = generate_pb2.GenerateRequest(
        model=request.model,
        sampling=_sampling(request.sampling),
        stop=_stop(request.stop),
        choice_count=request.choice_count,
        output=generate_pb2.OutputParams(
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
            token_ids=request.token_ids,
            modalities=_SPEECH if request.speech else (),
        ),
    )
    if isinstance(request.input, generation.ChatInput):
        message.chat.CopyFrom(chat_to_proto(request.input))
    elif isinstance(request.input, str):
        message.text = request.input
    else:
        message.tokens.ids.extend(request.input)
    if request.constraint is not None:
        message.constraint.CopyFrom(_constraint(request.constraint))
    return message


def start_to_proto(
    stream_id: str,
    request: generation.GenerateRequest,
    context: RequestContext,
    timeout: float | None,
) -> generate_pb2.GenerateManyRequest:
    """The start of a request on a multiplexed stream.

    Args:
        stream_id: unique on the stream.
        request: what to generate.
        context: the request that it is for.
        timeout: seconds; None leaves it to the service.
    """
    start = generate_pb2.StartGenerate(
        stream_id=stream_id,
        request=request_to_proto(request),
        traceparent=context.traceparent,
        tenant=context.tenant,
        batch=context.priority == "batch",
        request_id=context.request_id,
    )
    if timeout is not None:
        start.timeout.CopyFrom(milliseconds_to_duration(max(1, round(timeout * 1000))))
    return generate_pb2.GenerateManyRequest(start=start)


def cancel_to_proto(stream_id: str) -> generate_pb2.GenerateManyRequest:
    """The end of a request on a multiplexed stream."""
    return generate_pb2.GenerateManyRequest(cancel=generate_pb2.CancelGenerate(stream_id=stream_id))


def chat_to_proto(chat: generation.ChatInput) -> generate_pb2.ChatInput:
    """Messages, tools and template settings."""
    message = generate_pb2.ChatInput(
        messages=[_message(item) for item in chat.messages],
        tools=[
            chat_pb2.Tool(
                name=tool.name,
                description=tool.description,
                parameters_json=tool.parameters,
                strict=tool.strict,
            )
            for tool in chat.tools
        ],
        template_kwargs_json=chat.template_kwargs,
        continue_final_message=chat.continue_final_message,
        reasoning_effort=chat.reasoning_effort,
        thinking_budget=chat.thinking_budget,
    )
    if chat.tool_choice is not None:
        choice = chat.tool_choice
        message.tool_choice.CopyFrom(
            chat_pb2.ToolChoice(
                mode=f"MODE_{choice.mode.name}",
                name=choice.name,
                allowed=choice.allowed,
                single_call=choice.single_call,
            )
        )
    return message


def response_to_event(message: generate_pb2.GenerateResponse) -> generation.GenerateEvent | None:
    """The event of one response; None for a kind that this build does not know."""
    kind = message.WhichOneof("event")
    if kind == "delta":
        return _delta(message.delta)
    if kind == "accepted":
        accepted = message.accepted
        return generation.Accepted(
            request_id=accepted.request_id,
            model=accepted.model,
            fingerprint=accepted.fingerprint,
            prompt_tokens=accepted.prompt_tokens,
            notes=tuple(accepted.notes),
            prompt_logprobs=_logprobs(accepted.prompt_logprobs),
        )
    if kind == "finished":
        finished = message.finished
        failed = finished.HasField("error")
        return generation.Finished(
            choice=finished.choice,
            reason=_FINISH_REASONS.get(finished.reason, generation.FinishReason.ERROR),
            stop_string=finished.stop_string,
            stop_token_id=finished.stop_token_id,
            error=from_status(finished.error) if failed else None,
        )
    if kind == "completed":
        return _completed(message.completed)
    return None


def model_from_proto(message: llm_service_pb2.Model) -> catalog.ModelInfo:
    """One served model."""
    return catalog.ModelInfo(
        id=message.id,
        context_limit=message.context_limit,
        input_modalities=_modalities(message.input_modalities),
        output_modalities=_modalities(message.output_modalities),
        chat=message.chat,
        fingerprint=message.fingerprint,
        base_model=message.base_model,
        aliases=tuple(message.aliases),
        created_at=message.created_at_seconds,
        tenant=message.tenant,
        shared=message.shared,
        code_format=(
            code_format_from_proto(message.code_format) if message.HasField("code_format") else None
        ),
    )


def tokenized_from_proto(message: llm_service_pb2.TokenizeResponse) -> generation.Tokenized:
    """Tokens of an input."""
    return generation.Tokenized(tuple(message.ids), message.context_limit, message.rendered)


def _modalities(numbers: Iterable[int]) -> tuple[generation.Modality, ...]:
    return tuple(_MODALITIES[number] for number in numbers if number in _MODALITIES)


def _message(item: generation.Message) -> chat_pb2.ChatMessage:
    return chat_pb2.ChatMessage(
        role=chat_pb2.ChatRole.Name(_ROLES[item.role]),
        parts=[_part(part) for part in item.parts],
        name=item.name,
        tool_call_id=item.tool_call_id,
        tool_calls=[
            chat_pb2.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments)
            for call in item.tool_calls
        ],
        reasoning=item.reasoning,
    )


def _part(part: generation.Content) -> chat_pb2.ContentPart:
    if isinstance(part, str):
        return chat_pb2.ContentPart(text=part)
    if isinstance(part, generation.ImageContent):
        media = chat_pb2.MediaPart(data=part.data, mime_type=part.mime_type)
        return chat_pb2.ContentPart(image=media)
    audio_format = audio_format_to_proto(AudioFormat(part.encoding, part.sample_rate))
    return chat_pb2.ContentPart(audio=chat_pb2.AudioPart(data=part.data, format=audio_format))


def _sampling(sampling: generation.Sampling) -> generate_pb2.SamplingParams:
    message = generate_pb2.SamplingParams(
        allowed_token_ids=sampling.allowed_token_ids, banned_token_ids=sampling.banned_token_ids
    )
    for name in _OPTIONAL_SAMPLING:
        value = getattr(sampling, name)
        if value is not None:
            setattr(message, name, value)
    if sampling.logit_bias:
        message.logit_bias.update(sampling.logit_bias)
    return message


def _stop(stop: generation.Stop) -> generate_pb2.StopParams:
    return generate_pb2.StopParams(
        max_tokens=stop.max_tokens,
        strings=stop.strings,
        token_ids=stop.token_ids,
        ignore_eos=stop.ignore_eos,
        include_stop=stop.include_stop,
    )


def _constraint(constraint: generation.Constraint) -> generate_pb2.Constraint:
    message = generate_pb2.Constraint(strict=constraint.strict)
    if constraint.kind is generation.ConstraintKind.JSON_OBJECT:
        message.json_object = True
    elif constraint.kind is generation.ConstraintKind.CHOICE:
        message.choice.values.extend(constraint.value)
    else:
        setattr(message, constraint.kind.value, constraint.value)
    return message


def _delta(delta: generate_pb2.GenerateDelta) -> generation.Delta:
    event = generation.Delta(delta.choice, delta.text, token_count=delta.token_count)
    if delta.reasoning:
        event.reasoning = delta.reasoning
    if delta.tool_calls:
        event.tool_calls = tuple(
            generation.ToolCallDelta(call.index, call.id, call.name, call.arguments)
            for call in delta.tool_calls
        )
    if delta.logprobs:
        event.logprobs = _logprobs(delta.logprobs)
    if delta.HasField("codes"):
        event.codes = tuple(delta.codes.codes)
    if delta.token_ids:
        event.token_ids = tuple(delta.token_ids)
    return event


def _logprobs(
    items: Iterable[generate_pb2.TokenLogprob],
) -> tuple[generation.TokenLogprob, ...]:
    return tuple(
        generation.TokenLogprob(
            token_id=item.token_id,
            token=item.token,
            logprob=item.logprob,
            alternatives=tuple(
                generation.TokenAlternative(other.token_id, other.token, other.logprob)
                for other in item.alternatives
            ),
            rank=item.rank,
        )
        for item in items
    )


def _completed(message: generate_pb2.GenerateCompleted) -> generation.Completed:
    usage = message.usage

    def optional(name: str) -> int | None:
        return getattr(usage, name) if usage.HasField(name) else None

    return generation.Completed(
        usage=generation.Usage(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=optional("reasoning_tokens"),
            audio_tokens=optional("audio_tokens"),
            accepted_draft_tokens=optional("accepted_draft_tokens"),
            rejected_draft_tokens=optional("rejected_draft_tokens"),
        ),
        timings=generation.Timings(
            queued=seconds(message.timings.queued),
            prefill=seconds(message.timings.prefill),
            decode=seconds(message.timings.decode),
        ),
    )
