"""Draw settings: their ranges, and what they become when a request leaves some open."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from antiphon_core.errors import FailedPrecondition, InvalidArgument

from antiphon_llm.front.generation_config import SamplingDefaults
from antiphon_llm.front.ranges import check_count, check_ids, check_range, unsupported
from antiphon_llm.front.requests import GenerationRequest, SamplingOptions
from antiphon_llm.messages import Constraint, Reasoning, Sampling

LOGIT_BIAS_LIMIT = 1024
NGRAM_LIMIT = 64
_INT64 = 2**63


def check_sampling(asked: SamplingOptions, *, vocabulary_size: int, draft_depth: int) -> None:
    """Every field lies in its range.

    Args:
        draft_depth: most drafts of a step at this boot.

    Raises:
        InvalidArgument: naming the field and what it may hold.
    """
    temperature = asked.temperature
    if temperature is not None and temperature != 0:
        check_range("sampling.temperature", temperature, 0.001, 100, " or 0 (greedy)")
    check_range("sampling.top_k", asked.top_k, 0, None)
    check_range("sampling.top_p", asked.top_p, 0, 1)
    check_range("sampling.min_p", asked.min_p, 0, 1)
    check_range("sampling.repetition_penalty", asked.repetition_penalty, 0.01, 10)
    check_range("sampling.presence_penalty", asked.presence_penalty, -2, 2)
    check_range("sampling.frequency_penalty", asked.frequency_penalty, -2, 2)
    check_range("sampling.min_tokens", asked.min_tokens, 0, None)
    check_range("sampling.seed", asked.seed, -_INT64, _INT64 - 1)
    _check_bias(asked, vocabulary_size)
    _check_ids_left(asked, vocabulary_size)
    _check_ngrams(asked)
    _check_draft_depth(asked.draft_depth, draft_depth)


def reasoning_defaults(defaults: SamplingDefaults, values: Mapping[str, float]) -> SamplingDefaults:
    """The defaults of requests that may reason: the model's own, but for these values by name.

    Raises:
        FailedPrecondition: an unknown name, or a value that a request may not have.
    """
    known = [item.name for item in fields(SamplingDefaults)]
    if unknown := sorted(set(values) - set(known)):
        raise FailedPrecondition(
            f"reasoning_sampling has {unknown[0]!r}; known are {', '.join(known)}",
            field="reasoning_sampling",
        )
    typed: dict[str, Any] = dict(values)
    if "top_k" in values:
        typed["top_k"] = int(values["top_k"])
        if typed["top_k"] != values["top_k"]:
            raise FailedPrecondition(
                f"reasoning_sampling: top_k is {values['top_k']:g}, allowed is a whole number",
                field="reasoning_sampling",
            )
    try:
        check_sampling(SamplingOptions(**typed), vocabulary_size=1, draft_depth=0)
    except InvalidArgument as error:
        raise FailedPrecondition(
            f"reasoning_sampling: {error.message}", field="reasoning_sampling"
        ) from None
    return replace(defaults, **typed)


def resolve_sampling(
    request: GenerationRequest,
    defaults: SamplingDefaults,
    *,
    context_limit: int,
    max_output: int,
    constraint: Constraint | None = None,
    reasoning: Reasoning | None = None,
) -> Sampling:
    """The engine's draw settings: the request's, completed by the model's defaults.

    Args:
        request: checked.
        defaults: of the model's generation config.
        context_limit: tokens; the bound of an output that names none.
        max_output: configured bound of such an output; 0 leaves the context's.
        constraint: on the answer.
        reasoning: where the model's reasoning ends, and its budget.
    """
    asked, stop, output = request.sampling, request.stop, request.output

    def pick(name: str) -> float:
        value = getattr(asked, name)
        return getattr(defaults, name) if value is None else value

    return Sampling(
        temperature=pick("temperature"),
        top_k=int(pick("top_k")),
        top_p=pick("top_p"),
        min_p=pick("min_p"),
        repetition_penalty=pick("repetition_penalty"),
        presence_penalty=pick("presence_penalty"),
        frequency_penalty=pick("frequency_penalty"),
        logit_bias=dict(asked.logit_bias),
        # A seed of the request's own kind, so that the one reported can be sent again.
        seed=secrets.randbits(64) - _INT64 if asked.seed is None else asked.seed,
        seeded=asked.seed is not None,
        max_tokens=stop.max_tokens or max_output or context_limit,
        min_tokens=asked.min_tokens or 0,
        stop_token_ids=list(stop.token_ids),
        ignore_eos=stop.ignore_eos,
        logprobs=-1 if output.logprobs is None else output.logprobs,
        prompt_logprobs=-1 if output.prompt_logprobs is None else output.prompt_logprobs,
        allowed_token_ids=list(asked.allowed_token_ids),
        banned_token_ids=list(asked.banned_token_ids),
        no_repeat_ngram_size=asked.no_repeat_ngram_size or 0,
        no_repeat_ngram_window=asked.no_repeat_ngram_window or 0,
        draft_depth=-1 if asked.draft_depth is None else asked.draft_depth,
        constraint=constraint,
        reasoning=reasoning,
        speech=output.wants_speech,
    )


def _check_bias(asked: SamplingOptions, vocabulary_size: int) -> None:
    check_count("sampling.logit_bias", len(asked.logit_bias), LOGIT_BIAS_LIMIT)
    for token_id, bias in asked.logit_bias.items():
        field = f"sampling.logit_bias[{token_id}]"
        if not 0 <= token_id < vocabulary_size:
            raise InvalidArgument(
                f"{field} is outside the vocabulary 0 to {vocabulary_size - 1}", field=field
            )
        check_range(field, bias, -100, 100)


def _check_ids_left(asked: SamplingOptions, vocabulary_size: int) -> None:
    allowed, banned = asked.allowed_token_ids, asked.banned_token_ids
    check_ids("sampling.allowed_token_ids", allowed, vocabulary_size)
    check_ids("sampling.banned_token_ids", banned, vocabulary_size)
    if banned and set(banned).issuperset(allowed or range(vocabulary_size)):
        raise InvalidArgument(
            "sampling.banned_token_ids leaves no id that may be drawn",
            field="sampling.banned_token_ids",
        )


def _check_ngrams(asked: SamplingOptions) -> None:
    size, window = asked.no_repeat_ngram_size or 0, asked.no_repeat_ngram_window or 0
    check_range("sampling.no_repeat_ngram_size", size, 0, NGRAM_LIMIT)
    field = "sampling.no_repeat_ngram_window"
    check_range(field, window, 0, None)
    if window and not size:
        raise InvalidArgument(
            f"{field} is {window}, allowed is 0 without no_repeat_ngram_size", field=field
        )
    if window and window < size:
        raise InvalidArgument(
            f"{field} is {window}, allowed is 0 (all) or at least no_repeat_ngram_size {size}",
            field=field,
            metadata={"limit": str(size), "observed": str(window)},
        )


def _check_draft_depth(asked: int | None, limit: int) -> None:
    if asked and not limit:
        unsupported("sampling.draft_depth", "this boot does not speculate", allowed=("0",))
    check_range("sampling.draft_depth", asked, 0, limit)
