"""Generation settings that chat and text completions share."""

from __future__ import annotations

from typing import Protocol

from antiphon_core.errors import InvalidArgument

from antiphon_gateway.domain.generation import Constraint, ConstraintKind, Sampling


class SamplingFields(Protocol):
    """The settings as both wire models spell them."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: dict[int, float] | None
    seed: int | None
    min_tokens: int | None


class ConstraintFields(Protocol):
    """The constraint extensions as both wire models spell them."""

    regex: str | None
    grammar: str | None
    choice: list[str] | None


def sampling_of(request: SamplingFields) -> Sampling:
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
    )


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings as a tuple."""
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def at_most_one_constraint(request: ConstraintFields) -> Constraint | None:
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
