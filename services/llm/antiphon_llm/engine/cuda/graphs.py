"""Decode steps recorded as graphs: a ladder of row counts, one memory pool, one stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from antiphon_core.logs import get_logger

from .device import Device, Graph

_log = get_logger(__name__)

EACH_UP_TO = 8
STEP_8_UP_TO = 128

ABOVE_LADDER = "above ladder"
NOT_RECORDED = "not recorded"
SWITCHED_OFF = "off"
UNEXPECTED = "unexpected"
"""A rung that nothing refused has no recording: a defect, so this count must stay 0."""


class MovedTensor(RuntimeError):
    """A tensor that a recording reads lies elsewhere now: replaying would read freed memory."""


def ladder(largest: int) -> list[int]:
    """Row counts that are recorded: 1 to 8, every 8th to 128, every 16th beyond, the largest."""
    if largest < 1:
        raise ValueError(f"graph_rows_max must be at least 1, got {largest}")
    rungs = [
        *range(1, EACH_UP_TO + 1),
        *range(2 * EACH_UP_TO, STEP_8_UP_TO + 1, 8),
        *range(STEP_8_UP_TO + 16, largest + 1, 16),
        largest,
    ]
    return sorted({rung for rung in rungs if rung <= largest})


@dataclass(frozen=True, slots=True)
class _Recorded:
    graph: Graph
    addresses: dict[str, int]


class DecodeGraphs:
    """Recorded decode steps by row count.

    Attributes:
        replays, pad_rows: steps that a graph ran, and the padding rows in them.
        eager: decode steps that took the Python path, by reason.
        refused: rungs without a recording, and why; of the last :meth:`record`.
        pool_bytes: device memory that recording took.
    """

    def __init__(self, device: Device, *, rows_max: int, enabled: bool, debug: bool) -> None:
        self._device = device
        self._rungs = ladder(rows_max) if enabled else []
        self._place: list[int] = _places(self._rungs)
        self._debug = debug
        self._recorded: dict[int, _Recorded] = {}
        self.refused: dict[int, str] = {}
        self.replays = self.pad_rows = self.pool_bytes = 0
        self.eager: dict[str, int] = {}

    @property
    def counters(self) -> dict[str, int]:
        """What decode steps ran, by outcome."""
        counts = {"graph: replay": self.replays, "graph: pad rows": self.pad_rows}
        counts |= {f"graph: eager, {reason}": count for reason, count in self.eager.items()}
        return counts

    def record(
        self,
        work: Callable[[int], Callable[[], None]],
        tensors: Callable[[int], Mapping[str, torch.Tensor]],
    ) -> None:
        """Records ``work(rows)`` for every rung, the largest first.

        A rung that runs out of memory or is not supported stays eager. An aborted recording
        ends the sweep, and its pool is not used again: what it holds is in doubt.
        """
        before, _ = self._device.free_and_total()
        self.refused.clear()
        for rows in reversed(self._rungs):
            addresses = {name: tensor.data_ptr() for name, tensor in tensors(rows).items()}
            try:
                graph = self._device.record(work(rows))
            except (torch.OutOfMemoryError, NotImplementedError) as refusal:
                self._refuse(rows, f"{type(refusal).__name__}: {refusal}")
            except RuntimeError as aborted:
                self._refuse(rows, f"aborted: {aborted}")
                self._device.retire_pool()
                self._refuse_below(rows)
                break
            else:
                self._recorded[rows] = _Recorded(graph, addresses)
        after, _ = self._device.free_and_total()
        self.pool_bytes = max(0, before - after)

    def route(self, rows: int) -> int:
        """The row count that a step of ``rows`` live rows runs at: a rung, or ``rows`` itself."""
        if rows < len(self._place) and self._place[rows] in self._recorded:
            return self._place[rows]
        return rows

    def run(
        self,
        rows: int,
        live: int,
        work: Callable[[], None],
        tensors: Callable[[], Mapping[str, torch.Tensor]],
    ) -> None:
        """Runs a prepared step at the row count that ``route`` gave."""
        recorded = self._recorded.get(rows)
        if recorded is None:
            reason = self._eager_reason(rows)
            self.eager[reason] = self.eager.get(reason, 0) + 1
            work()
            return
        if self._debug:
            _check_addresses(recorded.addresses, tensors())
        recorded.graph.replay()
        self.replays += 1
        self.pad_rows += rows - live

    def recorded(self, rows: int) -> Graph | None:
        """The recording of exactly so many rows."""
        found = self._recorded.get(rows)
        return None if found is None else found.graph

    def release(self) -> None:
        """Drops all recordings; decode steps are eager until they are recorded again."""
        self._recorded.clear()
        self._device.retire_pool()

    def _eager_reason(self, rows: int) -> str:
        if not self._rungs:
            return SWITCHED_OFF
        if rows > self._rungs[-1]:
            return ABOVE_LADDER
        return NOT_RECORDED if self._place[rows] in self.refused else UNEXPECTED

    def _refuse(self, rows: int, reason: str) -> None:
        self.refused[rows] = reason
        _log.warning("graph_not_recorded", rows=rows, reason=reason)

    def _refuse_below(self, aborted: int) -> None:
        """The rungs that a sweep did not come to."""
        for rows in self._rungs[: self._rungs.index(aborted)]:
            self.refused[rows] = f"the sweep ended at {aborted} rows"


def _places(rungs: list[int]) -> list[int]:
    """For each number of live rows, the smallest rung that holds them."""
    places = [0]
    for rung in rungs:
        places += [rung] * (rung + 1 - len(places))
    if places and rungs:
        places[0] = rungs[0]
    return places if rungs else []


def _check_addresses(recorded: dict[str, int], tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if recorded.get(name) != tensor.data_ptr():
            raise MovedTensor(f"{name} has moved since the decode step was recorded")
