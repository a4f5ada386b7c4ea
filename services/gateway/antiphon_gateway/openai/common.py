"""Field types that several endpoints share, and the usage object."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from antiphon_gateway.domain import generation

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_TOKEN_IDS = 1 << 20
"""More ids than any vocabulary has."""
INT32_MAX = 2**31 - 1

Temperature = Annotated[float, Meta(ge=0, le=2)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(ge=0.01, le=10)]
TopK = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Count = Annotated[int, Meta(ge=1, le=INT32_MAX)]
CountOrZero = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
TokenId = Annotated[int, Meta(ge=0, le=INT32_MAX)]
TokenIds = Annotated[list[TokenId], Meta(max_length=MAX_TOKEN_IDS)]
NgramSize = Annotated[int, Meta(ge=0, le=64)]
DraftDepth = Annotated[int, Meta(ge=0, le=64)]
StopString = Annotated[str, Meta(min_length=1, max_length=256)]
Stop = StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)]
StopTokenIds = Annotated[list[TokenId], Meta(max_length=64)]
LogitBias = Annotated[
    dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)
]
MAX_SCHEMA_BYTES = 256 * 1024

Grammar = Annotated[str, Meta(min_length=1, max_length=MAX_SCHEMA_BYTES)]
PriorityName = Literal["interactive", "batch"]
ServiceTier = Literal["auto", "default", "flex"]
"""``flex`` is batch priority."""
ChoiceStrings = Annotated[list[str], Meta(min_length=1, max_length=1024)]
_NULL = Raw(b"null")


def null() -> Raw:
    """The default of a field that is passed on unread; a factory, for schemas have no bytes."""
    return _NULL


class StreamOptions(Struct):
    """What a stream reports beside the text."""

    include_usage: bool | None = None
    include_token_count: bool | None = None
    include_obfuscation: bool | None = None


class PromptTokensDetails(Struct):
    """Parts of the prompt tokens."""

    cached_tokens: int
    audio_tokens: int = 0


class CompletionTokensDetails(Struct, omit_defaults=True):
    """Parts of the completion tokens; only those that have a producer."""

    reasoning_tokens: int | UnsetType = UNSET
    audio_tokens: int | UnsetType = UNSET
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class Usage(Struct):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Timing(Struct):
    """Where the time of a request went, in milliseconds."""

    queued_ms: float
    prefill_ms: float
    decode_ms: float


def usage_of(usage: generation.Usage) -> Usage:
    """The only place that turns backend counts into a usage object."""
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.prompt_tokens + usage.output_tokens,
        prompt_tokens_details=PromptTokensDetails(usage.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=_known(usage.reasoning_tokens),
            audio_tokens=_known(usage.audio_tokens),
            accepted_prediction_tokens=_known(usage.accepted_draft_tokens),
            rejected_prediction_tokens=_known(usage.rejected_draft_tokens),
        ),
    )


def timing_of(timings: generation.Timings) -> Timing:
    """Durations as the ``timing`` extension shows them."""
    return Timing(
        *(round(value * 1000, 3) for value in (timings.queued, timings.prefill, timings.decode))
    )


FinishReasonName = Literal["stop", "length", "tool_calls"]

_FINISH_REASONS: dict[generation.FinishReason, FinishReasonName] = {
    generation.FinishReason.STOP: "stop",
    generation.FinishReason.LENGTH: "length",
    generation.FinishReason.CONTEXT: "length",
    generation.FinishReason.TOOL_CALLS: "tool_calls",
    # An operator ended the request normally: what there is, is the answer.
    generation.FinishReason.CANCELLED: "stop",
}


def finish_reason_of(finished: generation.Finished) -> FinishReasonName:
    """The SDK's name of a finish reason.

    Raises:
        AntiphonError: the choice failed.
    """
    if finished.error is not None:
        raise finished.error
    return _FINISH_REASONS[finished.reason]


def _known(value: int | None) -> int | UnsetType:
    return UNSET if value is None else value
