"""Dividing a step's token budget over running prefills."""

from __future__ import annotations

from collections.abc import Sequence


def water_fill(demands: Sequence[int], budget: int, unit: int) -> list[int]:
    """Tokens for each demand, oldest first, whose sum is at most ``budget``.

    Finds the level L at which every demand gets ``min(demand, L)``: small demands are served
    whole and leave their rest to the others. A share that does not complete its demand is
    rounded down to whole ``unit`` tokens, and what that leaves goes to the oldest that can
    still use it.
    """
    if sum(demands) <= budget:
        return list(demands)
    level, left = 0, budget
    ascending = sorted(demands)
    for place, demand in enumerate(ascending):
        level = left // (len(ascending) - place)
        if demand > level:
            break
        left -= demand
    shares = [demand if demand <= level else level - level % unit for demand in demands]
    left = budget - sum(shares)
    for place, demand in enumerate(demands):
        extra = min(demand - shares[place], left)
        shares[place] += extra
        left -= extra
    return shares
