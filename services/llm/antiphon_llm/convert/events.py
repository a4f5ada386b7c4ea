"""Events of a generation."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.llm.v1 import generate_pb2
from antiphon_core.errors import AntiphonError
from antiphon_core.rpc.errors import to_status

from antiphon_llm.front.events import (
    Accepted,
    ChoiceFinished,
    Completed,
    Delta,
    Event,
    TokenLogprob,
)

from .common import duration
from .sampling import effective_settings

_REASONS = {
    "stop": generate_pb2.FINISH_REASON_STOP,
    "tool_calls": generate_pb2.FINISH_REASON_TOOL_CALLS,
    "length": generate_pb2.FINISH_REASON_LENGTH,
    "context": generate_pb2.FINISH_REASON_CONTEXT,
    "cancelled": generate_pb2.FINISH_REASON_CANCELLED,
    "error": generate_pb2.FINISH_REASON_ERROR,
}


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


def _accepted(event: Accepted) -> generate_pb2.GenerateAccepted:
    return generate_pb2.GenerateAccepted(
        request_id=event.request_id,
        model=event.model,
        fingerprint=event.fingerprint,
        prompt_tokens=event.prompt_tokens,
        notes=event.notes,
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
    if event.reasoning:
        delta.reasoning = event.reasoning
    for piece in event.tool_calls:
        delta.tool_calls.add(
            index=piece.index, id=piece.id, name=piece.name, arguments=piece.arguments
        )
    if event.codes is not None:
        delta.codes.codes.extend(event.codes.codes)
        delta.codes.codebook_count = event.codes.codebook_count
        delta.codes.frame_rate = event.codes.frame_rate
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
            rank=item.rank,
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
    # Without a draft there is nothing to count, which is not the same as none accepted.
    drafted = event.usage.accepted_drafts + event.usage.rejected_drafts > 0
    return generate_pb2.GenerateCompleted(
        usage=generate_pb2.Usage(
            prompt_tokens=event.usage.prompt_tokens,
            cached_tokens=event.usage.cached_tokens,
            output_tokens=event.usage.output_tokens,
            reasoning_tokens=event.usage.reasoning_tokens,
            audio_tokens=event.usage.audio_tokens,
            accepted_draft_tokens=event.usage.accepted_drafts if drafted else None,
            rejected_draft_tokens=event.usage.rejected_drafts if drafted else None,
        ),
        timings=generate_pb2.Timings(
            queued=duration(event.timings.queued),
            prefill=duration(event.timings.prefill),
            decode=duration(event.timings.decode),
        ),
        effective=effective_settings(event.settings),
    )
