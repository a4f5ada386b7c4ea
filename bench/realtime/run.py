"""Many callers at once, or at Poisson times."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.realtime.caller import Caller, Manners, Observer
from bench.realtime.turns import Question, Turn

_SHOW_EVERY_S = 0.5


@dataclass(frozen=True)
class Load:
    """Who calls.

    ``sessions`` connections in all, each with ``turns`` questions. Without a ``rate`` they all
    begin at once (spread over ``spread_s``, so that they do not speak in step); with one they
    begin at Poisson times, whatever the server does.
    """

    url: str
    questions: Sequence[Question]
    sessions: int = 1
    turns: int = 1
    rate: float | None = None
    """Sessions that begin in a second."""
    spread_s: float = 1.0
    manners: Manners = field(default_factory=Manners)
    headers: dict[str, str] = field(default_factory=dict)
    seed: int = 0

    def check(self) -> None:
        """Refuses a load that makes no sense.

        Raises:
            ValueError: naming the value.
        """
        if not self.questions:
            raise ValueError("wavs: there is nothing to say")
        for name in ("sessions", "turns"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; at least one is needed")
        if self.rate is not None and self.rate <= 0:
            raise ValueError(f"rate is {self.rate}; sessions a second are above 0")


@dataclass
class Run:
    """What a run gathers; grows while it goes on."""

    callers: list[Caller] = field(default_factory=list)
    in_flight: int = 0

    @property
    def records(self) -> list[Turn]:
        """Turns that have ended."""
        return [turn for turn in self.turns if turn.outcome != "lost"]

    @property
    def turns(self) -> list[Turn]:
        """All turns."""
        return [turn for caller in self.callers for turn in caller.turns]

    @property
    def event_errors(self) -> list[str]:
        """Codes of the error events of all sessions."""
        return [code for caller in self.callers for code in caller.reader.errors]

    def count(self, outcome: str) -> int:
        """Ended turns of one outcome."""
        return sum(turn.outcome == outcome for turn in self.records)


async def run(
    load: Load,
    *,
    observer: Callable[[int], Observer] = lambda number: lambda event: None,
    show: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Runs every session to its end.

    Args:
        observer: makes, for a session's number, what gets each of its events.
        show: called twice a second and at the end.
    """
    load.check()
    made, chance = Run(), random.Random(load.seed)
    ticker = asyncio.create_task(_tick(made, show))
    try:
        async with asyncio.TaskGroup() as group:
            due = time.perf_counter()
            for number in range(load.sessions):
                wait = load.spread_s / load.sessions if load.rate is None else None
                group.create_task(_session(load, made, number, observer(number), due))
                due += wait if wait is not None else chance.expovariate(load.rate or 1.0)
    finally:
        ticker.cancel()
        show(made)
    return made


async def _session(load: Load, made: Run, number: int, observe: Observer, due: float) -> None:
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    caller = Caller(load.url, number, load.manners, headers=load.headers, observe=observe)
    made.callers.append(caller)
    made.in_flight += 1
    first = number * load.turns
    places = range(first, first + load.turns)
    await caller.call([load.questions[place % len(load.questions)] for place in places])
    made.in_flight -= 1


async def _tick(made: Run, show: Callable[[Run], None]) -> None:
    while True:
        await asyncio.sleep(_SHOW_EVERY_S)
        show(made)
