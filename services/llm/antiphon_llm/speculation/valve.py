"""Whether to draft at the present load at all."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

_DEAD_BAND = 0.03
"""Gain below which an arm is no better."""
_PHASE_STEPS, _PROBE_STEPS, _SETTLE_STEPS = 512, 12, 2
"""Steps of a load between probes, of a probe, and of a probe's beginning that are not counted."""
_AGREEING = 3
"""Probes in a row that must find drafting slower before it stops; one resumes it."""


class Valve(Protocol):
    """Lets drafts through or not."""

    def open(self, rows: int) -> bool:
        """Whether a step of so many decode rows may draft."""
        ...

    def took(self, rows: int, tokens: int, seconds: float) -> None:
        """The last step, of decode rows alone, drew so many tokens in this time."""
        ...


class Open:
    """``off``: there is no valve, every load drafts."""

    def open(self, rows: int) -> bool:
        """See Valve."""
        return True

    def took(self, rows: int, tokens: int, seconds: float) -> None:
        """See Valve. Nothing is decided here."""


class UpTo:
    """``on:B``: steps of at most B decode rows draft."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def open(self, rows: int) -> bool:
        """See Valve."""
        return rows <= self._rows

    def took(self, rows: int, tokens: int, seconds: float) -> None:
        """See Valve. The bound is fixed."""


@dataclass(slots=True)
class _Load:
    """What is known of the loads of one power of two of rows."""

    open: bool = True
    steps: int = 0
    slower: int = 0
    rates: dict[bool, deque[float]] = field(
        default_factory=lambda: {arm: deque(maxlen=_PROBE_STEPS) for arm in (False, True)}
    )


class Measured:
    """``auto``: compares tokens per second with and without drafting.

    For each power of two of rows one arm runs, and the other for a few steps now and then. To
    stop drafting takes several probes that agree, to resume it one: a drafter that has been
    off is cold, so that its probe reads low. The probes take 2 % of the steps.
    """

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}

    def open(self, rows: int) -> bool:
        """See Valve."""
        load = self._load(rows)
        return load.open != (load.steps >= _PHASE_STEPS)

    def took(self, rows: int, tokens: int, seconds: float) -> None:
        """See Valve."""
        load = self._load(rows)
        probing = load.steps - _PHASE_STEPS
        arm = load.open != (probing >= 0)
        if not 0 <= probing < _SETTLE_STEPS:
            load.rates[arm].append(tokens / seconds)
        load.steps += 1
        if probing == _PROBE_STEPS - 1:
            self._decide(load)

    def _decide(self, load: _Load) -> None:
        load.steps = 0
        drafting, plain = (median(load.rates[arm]) for arm in (True, False))
        if load.open:
            load.slower = load.slower + 1 if plain > (1 + _DEAD_BAND) * drafting else 0
            if load.slower == _AGREEING:
                load.open, load.slower = False, 0
        else:
            load.open = drafting > (1 + _DEAD_BAND) * plain
        for rates in load.rates.values():
            rates.clear()

    def _load(self, rows: int) -> _Load:
        return self._loads.setdefault(rows.bit_length(), _Load())


def valve_for(setting: str, *, dense: bool) -> Valve:
    """``off``, ``on:B`` or ``auto``; ValueError for anything else.

    ``auto`` stands down for dense models: their steps cost more with drafts only from a few
    hundred tokens on, which the depth's costs show, and a valve would keep one arm starved.
    """
    if setting == "off" or (setting == "auto" and dense):
        return Open()
    if setting == "auto":
        return Measured()
    kind, _, bound = setting.partition(":")
    if kind == "on" and bound.isdecimal() and int(bound) > 0:
        return UpTo(int(bound))
    raise ValueError(
        f"draft_valve is {setting!r}; allowed are off, auto and on:B, the most rows that draft"
    )
