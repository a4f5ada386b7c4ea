"""How many tokens to draft: where expected tokens per second are highest.

At acceptance ``a`` per draft a row of depth K yields ``E = (1 - a^(K+1)) / (1 - a)`` tokens; a
step of B rows costs ``t(B, 1 + K)``. Acceptance follows the latest drafts, costs are medians of
measured steps, for numbers of rows that share their power of two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

_PRIOR_ACCEPTED, _PRIOR_CHECKED = 6.0, 8.0
"""Acceptance before any draft was checked: high, so that drafting is tried."""
_MEMORY = 0.98
"""What a step leaves of the weight of earlier drafts."""
_KEPT_STEPS = 16
_PROBE_STEPS = 64
"""Every so many steps of a load the other choice runs once: none where drafting pays, the whole
depth where it does not. So both costs and acceptance stay known, for at most 2 % of the steps."""


class StepCosts:
    """Median seconds of decode steps by power of two of their rows, and by width 1 + K."""

    def __init__(self) -> None:
        self._seconds: dict[int, dict[int, deque[float]]] = {}

    def took(self, rows: int, width: int, seconds: float) -> None:
        """A step of so many rows and positions each took so long."""
        widths = self._seconds.setdefault(rows.bit_length(), {})
        widths.setdefault(width, deque(maxlen=_KEPT_STEPS)).append(seconds)

    def knows(self, rows: int, width: int) -> bool:
        """Whether such a step was measured."""
        return width in self._seconds.get(rows.bit_length(), {})

    def seconds(self, rows: int, width: int) -> float:
        """A step's cost; between measured widths on a line, beyond them as the nearest one.

        1 where nothing was measured: only ratios within a load matter.
        """
        measured = self._seconds.get(rows.bit_length(), {})
        if not measured:
            return 1.0
        below = max((known for known in measured if known <= width), default=min(measured))
        above = min((known for known in measured if known >= width), default=max(measured))
        low, high = median(measured[below]), median(measured[above])
        if above == below:
            return low
        return low + (high - low) * (width - below) / (above - below)


class DepthPolicy:
    """Chooses the depth of each step, up to ``most``."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.costs = StepCosts()
        self._accepted, self._checked = _PRIOR_ACCEPTED, _PRIOR_CHECKED
        self._steps: dict[int, int] = {}

    @property
    def acceptance(self) -> float:
        """Share of the checked drafts that were accepted, lately."""
        return self._accepted / self._checked

    def took(self, rows: int, width: int, seconds: float) -> None:
        """A step of decode rows alone took so long."""
        self.costs.took(rows, width, seconds)

    def drafted(self, accepted: int, refused: int) -> None:
        """Outcome of a step's drafts; those behind a refused one were not checked."""
        self._accepted = _MEMORY * self._accepted + accepted
        self._checked = _MEMORY * self._checked + accepted + refused

    def probes(self, rows: int) -> bool:
        """Counts a step; whether it is one that takes what is not the best."""
        load = rows.bit_length()
        self._steps[load] = steps = self._steps.get(load, 0) + 1
        return steps % _PROBE_STEPS == 0

    def choose(self, lengths: Sequence[int], *, probe: bool = False) -> int:
        """The best depth for rows that could draft so many tokens each, 0 for those that cannot;
        with ``probe`` the whole depth in place of none, and none in place of any other."""
        longest = min(self.most, max(lengths))
        best = max(range(longest + 1), key=lambda depth: self._rate(lengths, depth))
        if probe:
            return 0 if best else longest
        return best

    def expected(self, depth: int) -> float:
        """Tokens of a row with so many drafts."""
        acceptance = min(self.acceptance, 0.999)
        return (1.0 - acceptance ** (depth + 1)) / (1.0 - acceptance)

    def _rate(self, lengths: Sequence[int], depth: int) -> float:
        tokens = sum(self.expected(min(length, depth)) for length in lengths)
        return tokens / self.costs.seconds(len(lengths), 1 + depth)
