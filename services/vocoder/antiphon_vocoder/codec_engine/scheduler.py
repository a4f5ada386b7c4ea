"""Which hops run next, together: earliest playback deadline first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from antiphon_vocoder.codec_engine.stream import HopStream, StepKey

PEER_SLACK_SECONDS = 0.050
"""Nobody waits for a peer whose listener could notice."""


@dataclass(frozen=True)
class PlannedStep:
    """Hops that run together."""

    key: StepKey
    streams: list[HopStream]
    """In order of their deadlines."""
    rung: int
    """Rows that run; those beyond the streams are padding."""


class StepScheduler:
    """Plans one step at a time.

    Args:
        rungs: rows that a step may have, ascending.
        costs: measured seconds of a step by key and rung; used where known.
        peer_wait: seconds that hops may wait for others of their kind.
    """

    def __init__(
        self,
        rungs: Sequence[int],
        costs: Mapping[StepKey, Mapping[int, float]],
        peer_wait: float,
    ) -> None:
        self._rungs = list(rungs)
        self._costs = costs
        self._peer_wait = peer_wait
        self._plans: dict[StepKey, list[tuple[float, int]]] = {}
        """By key and number of hops: seconds until all are done, and rows of the first step."""

    def plan(
        self, streams: Iterable[HopStream], now: float
    ) -> tuple[PlannedStep | None, float | None]:
        """The next step, or how many seconds to wait for one; (None, None): nothing can run.

        The group of the most urgent hop goes first. It stands back for ``peer_wait`` at most if
        each of its members can afford that and streams of its kind are open that it lacks.
        """
        groups: dict[StepKey, list[HopStream]] = defaultdict(list)
        open_streams: Counter[tuple[str, str]] = Counter()
        for stream in streams:
            open_streams[stream.codec, stream.stage] += not stream.drained
            if stream.next is not None:
                groups[stream.next].append(stream)
        wait: float | None = None
        for key, members in sorted(groups.items(), key=lambda group: _urgency(group[1])):
            peers = open_streams[key.codec, key.stage]
            patience = self._patience(members, peers, now)
            if patience <= 0:
                return self._step(key, members), None
            wait = patience if wait is None else min(wait, patience)
        return None, wait

    def _patience(self, members: list[HopStream], peers: int, now: float) -> float:
        """Seconds that the group still waits."""
        if len(members) >= min(peers, self._rungs[-1]):
            return 0.0
        if min(stream.deadline for stream in members) - now <= PEER_SLACK_SECONDS:
            return 0.0
        return min(stream.ready_at for stream in members) + self._peer_wait - now

    def _step(self, key: StepKey, members: list[HopStream]) -> PlannedStep:
        members.sort(key=lambda stream: (stream.deadline, stream.key))
        rung = self.rung(key, len(members))
        return PlannedStep(key, members[:rung], rung)

    def rung(self, key: StepKey, count: int) -> int:
        """Rows of the step for so many hops.

        The first step of those that by the measured times are done soonest; without measured
        times the smallest rung that holds them all.
        """
        costs = self._costs.get(key, {})
        if any(rung not in costs for rung in self._rungs):
            return next((rung for rung in self._rungs if rung >= count), self._rungs[-1])
        plans = self._plans.setdefault(key, [(0.0, 0)])
        for hops in range(len(plans), count + 1):
            ways = ((costs[rung] + plans[max(hops - rung, 0)][0], rung) for rung in self._rungs)
            plans.append(min(ways, key=lambda way: (way[0], -way[1])))
        return plans[count][1]


def _urgency(members: list[HopStream]) -> tuple[float, tuple[int, int]]:
    return min((stream.deadline, stream.key) for stream in members)
