"""Refusals that name the field and what it may hold. Nothing is clamped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

from antiphon_core.errors import InvalidArgument


def check_ids(field: str, ids: Sequence[int], vocabulary_size: int) -> None:
    """Every id lies in the vocabulary.

    Raises:
        InvalidArgument: naming the first that does not.
    """
    if ids and not (min(ids) >= 0 and max(ids) < vocabulary_size):
        place, wrong = next(
            (place, index) for place, index in enumerate(ids) if not 0 <= index < vocabulary_size
        )
        raise InvalidArgument(
            f"{field}[{place}] is {wrong}, outside the vocabulary 0 to {vocabulary_size - 1}",
            field=f"{field}[{place}]",
            metadata={"limit": str(vocabulary_size - 1), "observed": str(wrong)},
        )


def check_range(
    field: str,
    value: float | None,
    low: float,
    high: float | None,
    besides: str = "",
) -> None:
    """A finite value between two bounds, both allowed; None was not given.

    Args:
        besides: what else is allowed, for the message.

    Raises:
        InvalidArgument: with the observed value and what is allowed.
    """
    if value is None:
        return
    if math.isfinite(value) and value >= low and (high is None or value <= high):
        return
    bounds = f"{low:g} to {high:g}" if high is not None else f"{low:g} or more"
    raise InvalidArgument(
        f"{field} is {value:g}, allowed is {bounds}{besides}",
        field=field,
        metadata={"observed": f"{value:g}", "allowed": bounds + besides},
    )


def check_count(field: str, count: int, limit: int) -> None:
    """At most so many items.

    Raises:
        InvalidArgument: with limit and observed.
    """
    if count > limit:
        raise InvalidArgument(
            f"{field} has {count} items, allowed are at most {limit}",
            field=field,
            metadata={"limit": str(limit), "observed": str(count)},
        )


def unsupported(field: str, why: str, allowed: Sequence[str] = ()) -> NoReturn:
    """This boot or model has no such thing.

    Raises:
        InvalidArgument: UNSUPPORTED_OPTION.
    """
    raise InvalidArgument(
        f"{field} is not served: {why}",
        reason="UNSUPPORTED_OPTION",
        field=field,
        allowed=allowed,
    )
