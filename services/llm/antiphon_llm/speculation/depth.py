"""How many tokens to draft: where expected tokens per second are highest.

At acceptance ``a`` per draft a row of depth K yields ``1 + a + ... + a^K`` tokens, which is
``(1 - a^(K+1)) / (1 - a)``; a step of B rows costs ``t(B, 1 + K)``. Acceptance follows each
request's latest drafts, costs are medians of measured steps, for numbers of rows that share
their power of two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

_KEPT_STEPS = 16
_FIRST_PROBES = 2
_PROBE_STEPS = 64
"""Every so many steps of a load the other choice runs once: none where drafting pays, the whole
depth where it does not. So both costs and acceptance stay known, for at most 2 % of the steps."""


class Acceptance:
    """Share of the checked drafts that were accepted, lately.

    Args:
        prior: what it is before any draft was checked.
        weight: drafts that the prior counts for.
        memory: what a step with drafts leaves of the weight of earlier ones.
    """

    __slots__ = ("_accepted", "_checked", "_memory", "_prior", "_weight")

    def __init__(self, prior: float | Acceptance, *, weight: float, memory: float) -> None:
        self._prior = prior
        self._weight = weight
        self._memory = memory
        self._accepted = self._checked = 0.0

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        prior = self._prior.share if isinstance(self._prior, Acceptance) else self._prior
        return (self._accepted + self._weight * prior) / (self._checked + self._weight)

    def took(self, accepted: int, refused: int) -> None:
        """Outcome of a step's drafts; those behind a refused one were not checked."""
        self._accepted = self._memory * self._accepted + accepted
        self._checked = self._memory * self._checked + accepted + refused


class StepCosts:
    """Median seconds of decode steps by power of two of their rows, and by width 1 + K."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], deque[float]] = {}
        self._medians: dict[int, dict[int, float]] = {}

    def took(self, rows: int, width: int, seconds: float) -> None:
        """A step of so many rows and positions each took so long."""
        load = rows.bit_length()
        latest = self._latest.setdefault((load, width), deque(maxlen=_KEPT_STEPS))
        latest.append(seconds)
        self._medians.setdefault(load, {})[width] = median(latest)

    def seconds(self, rows: int, width: int) -> float:
        """A step's cost; between measured widths on a line, beyond them as the nearest one.

        1 where nothing was measured: only ratios within a load matter.
        """
        measured = self._medians.get(rows.bit_length())
        if not measured:
            return 1.0
        found = measured.get(width)
        if found is not None:
            return found
        below = max((known for known in measured if known < width), default=min(measured))
        above = min((known for known in measured if known > width), default=max(measured))
        low, high = measured[below], measured[above]
        return low if above == below else low + (high - low) * (width - below) / (above - below)


class DepthPolicy:
    """Chooses the depth of each step."""

    def __init__(self) -> None:
        self.costs = StepCosts()
        self._steps: dict[int, int] = {}

    def probes(self, rows: int) -> bool:
        """Counts a step; whether it is one that takes what is not the best."""
        load = rows.bit_length()
        self._steps[load] = steps = self._steps.get(load, 0) + 1
        # The first ones of a load as well: without a plain step's cost all drafts seem free.
        return steps <= _FIRST_PROBES or steps % _PROBE_STEPS == 0

    def choose(
        self, rows: int, lengths: Sequence[int], shares: Sequence[float], *, probe: bool = False
    ) -> int:
        """The best depth of a step of so many rows; with ``probe`` the whole depth in place of
        none, and none in place of any other.

        ``lengths`` are the drafts that those rows could have that draft at all, ``shares`` what
        of them is likely to be accepted.
        """
        longest = max(lengths, default=0)
        expected, best = float(rows), 0
        rate = expected / self.costs.seconds(rows, 1)
        reached = [1.0] * len(lengths)
        for depth in range(1, longest + 1):
            for place, length in enumerate(lengths):
                if length >= depth:
                    reached[place] *= shares[place]
                    expected += reached[place]
            deeper = expected / self.costs.seconds(rows, 1 + depth)
            if deeper > rate:
                rate, best = deeper, depth
        if probe:
            return 0 if best else longest
        return best
