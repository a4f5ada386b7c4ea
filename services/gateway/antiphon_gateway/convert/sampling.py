"""Generation settings that all endpoints which generate text share."""

from __future__ import annotations

from antiphon_core.errors import InvalidArgument

from antiphon_gateway.domain.generation import Constraint, ConstraintKind, Sampling, Stop
from antiphon_gateway.openai.generation import GenerationFields


def sampling_of(request: GenerationFields) -> Sampling:
    """Draw settings; what is absent stays the model's own."""
    return Sampling(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=request.logit_bias or {},
        seed=request.seed,
        min_tokens=request.min_tokens,
        allowed_token_ids=request.allowed_token_ids or (),
        banned_token_ids=request.banned_token_ids or (),
        no_repeat_ngram_size=request.no_repeat_ngram_size,
        no_repeat_ngram_window=request.no_repeat_ngram_window,
        draft_depth=request.draft_depth,
    )


def stop_of(request: GenerationFields, max_tokens: int | None) -> Stop:
    """When generation ends.

    Args:
        request: the wire model.
        max_tokens: the bound, which the endpoints spell differently; None sets none.
    """
    strings = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return Stop(
        max_tokens=max_tokens,
        strings=tuple(strings),
        token_ids=request.stop_token_ids or (),
        ignore_eos=bool(request.ignore_eos),
        include_stop=bool(request.include_stop),
    )


def at_most_one_constraint(request: GenerationFields) -> Constraint | None:
    """The constraint of the regex, grammar and choice extensions.

    Raises:
        InvalidArgument: more than one is given.
    """
    given = [
        Constraint(kind, value)
        for kind, value in (
            (ConstraintKind.REGEX, request.regex),
            (ConstraintKind.EBNF, request.grammar),
            (ConstraintKind.CHOICE, tuple(request.choice) if request.choice else None),
        )
        if value is not None
    ]
    if len(given) > 1:
        raise InvalidArgument("regex, grammar and choice exclude each other", field="regex")
    return given[0] if given else None
