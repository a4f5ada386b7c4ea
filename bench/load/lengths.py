"""Distributions of token counts, written the way the command line takes them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol


class Lengths(Protocol):
    """Draws token counts of at least 1."""

    def draw(self, chance: random.Random) -> int:
        """One count."""
        ...


@dataclass(frozen=True)
class Fixed:
    """Always the same count."""

    tokens: int

    def draw(self, chance: random.Random) -> int:
        """The count."""
        return self.tokens


@dataclass(frozen=True)
class Uniform:
    """Every count from ``low`` to ``high``, both included, equally often."""

    low: int
    high: int

    def draw(self, chance: random.Random) -> int:
        """One count."""
        return chance.randint(self.low, self.high)


@dataclass(frozen=True)
class LogNormal:
    """Counts whose logarithm is normal: many short ones and a long tail, as users write.

    ``median`` is the median count, ``sigma`` the standard deviation of the natural logarithm;
    draws are cut to 1 and ``most``.
    """

    median: int
    sigma: float
    most: int

    def draw(self, chance: random.Random) -> int:
        """One count."""
        return min(self.most, max(1, round(self.median * math.exp(chance.gauss(0.0, self.sigma)))))


def parse_lengths(text: str) -> Lengths:
    """Reads ``512``, ``fixed:512``, ``uniform:LOW:HIGH`` or ``lognormal:MEDIAN:SIGMA:MOST``.

    Raises:
        ValueError: any other form, or a count below 1.
    """
    kind, _, rest = text.partition(":")
    if not rest:
        kind, rest = "fixed", kind
    try:
        match kind, rest.split(":"):
            case "fixed", [tokens]:
                found: Lengths = Fixed(_count(tokens))
            case "uniform", [low, high] if _count(low) <= _count(high):
                found = Uniform(_count(low), _count(high))
            case "lognormal", [median, sigma, most] if float(sigma) >= 0:
                found = LogNormal(_count(median), float(sigma), _count(most))
            case _:
                raise ValueError
    except ValueError:
        raise ValueError(
            f"{text!r} is no length: use 512, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:MOST, "
            "with counts of at least 1"
        ) from None
    return found


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value
