"""Decode steps recorded as graphs: a ladder of row counts for each width of the rows, one memory
pool, one stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from antiphon_core.logs import get_logger

from .device import Device, Graph

_log = get_logger(__name__)

EACH_UP_TO = 8
STEP_8_UP_TO = 128

ABOVE_LADDER = "above ladder"
NOT_RECORDED = "not recorded"
NEAR_LIMIT = "near the context limit"
"""A row has no places for the padding of the recorded width."""
SWITCHED_OFF = "off"
UNEXPECTED = "unexpected"
"""A rung that nothing refused has no recording: a defect, so this count must stay 0."""


class MovedTensor(RuntimeError):
    """A tensor that a recording reads lies elsewhere now: replaying would read freed memory."""


class DecodeShape(NamedTuple):
    """What a decode step runs at."""

    rows: int
    width: int = 1
    """Tokens of each row: its last one and its drafts."""

    @property
    def tokens(self) -> int:
        """Of all rows."""
        return self.rows * self.width

    def __str__(self) -> str:
        return f"{self.rows} rows" if self.width == 1 else f"{self.rows} rows of {self.width}"


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
    """Recorded decode steps by row count and width.

    Attributes:
        replays, pad_rows: steps that a graph ran, and the padding rows in them.
        eager: decode steps that took the Python path, by reason.
        refused: rungs without a recording, and why; of the last :meth:`record`.
        pool_bytes: device memory that recording took.

    Args:
        widths: of the rows that are recorded; narrower rows are padded to the next one.
    """

    def __init__(
        self,
        device: Device,
        *,
        rows_max: int,
        enabled: bool,
        debug: bool,
        widths: Sequence[int] = (1,),
    ) -> None:
        self._device = device
        self._rungs = ladder(rows_max) if enabled else []
        self._widths = sorted(set(widths))
        self._place: list[int] = _places(self._rungs)
        self._debug = debug
        self._recorded: dict[DecodeShape, _Recorded] = {}
        self.refused: dict[DecodeShape, str] = {}
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
        work: Callable[[DecodeShape], Callable[[], None]],
        tensors: Callable[[DecodeShape], Mapping[str, torch.Tensor]],
    ) -> None:
        """Records ``work(shape)`` for every rung, the largest first.

        A rung that runs out of memory or is not supported stays eager. An aborted recording
        ends the sweep, and its pool is not used again: what it holds is in doubt.
        """
        before, _ = self._device.free_and_total()
        self.refused.clear()
        shapes = [DecodeShape(rows, width) for rows in self._rungs for width in self._widths]
        shapes.sort(key=lambda shape: (shape.tokens, shape.width), reverse=True)
        for place, shape in enumerate(shapes):
            addresses = {name: tensor.data_ptr() for name, tensor in tensors(shape).items()}
            try:
                graph = self._device.record(work(shape))
            except (torch.OutOfMemoryError, NotImplementedError) as refusal:
                self._refuse(shape, f"{type(refusal).__name__}: {refusal}")
            except RuntimeError as aborted:
                self._refuse(shape, f"aborted: {aborted}")
                self._device.retire_pool()
                for other in shapes[place + 1 :]:
                    self.refused[other] = f"the sweep ended at {shape}"
                break
            else:
                self._recorded[shape] = _Recorded(graph, addresses)
        after, _ = self._device.free_and_total()
        self.pool_bytes = max(0, before - after)

    def route(self, rows: int, width: int = 1, *, room: int = 1) -> DecodeShape:
        """What a step of ``rows`` live rows of ``width`` tokens runs at: a rung, or just that.

        Each row has places for ``room`` tokens, its own and padding.
        """
        if rows < len(self._place):
            for recorded in self._widths:
                shape = DecodeShape(self._place[rows], recorded)
                if width <= recorded <= max(room, width) and shape in self._recorded:
                    return shape
        return DecodeShape(rows, width)

    def run(
        self,
        shape: DecodeShape,
        live: int,
        work: Callable[[], None],
        tensors: Callable[[], Mapping[str, torch.Tensor]],
    ) -> None:
        """Runs a prepared step at the shape that ``route`` gave."""
        recorded = self._recorded.get(shape)
        if recorded is None:
            reason = self._eager_reason(shape)
            self.eager[reason] = self.eager.get(reason, 0) + 1
            work()
            return
        if self._debug:
            _check_addresses(recorded.addresses, tensors())
        recorded.graph.replay()
        self.replays += 1
        self.pad_rows += shape.rows - live

    def recorded(self, rows: int, width: int = 1) -> Graph | None:
        """The recording of exactly so many rows of so many tokens."""
        found = self._recorded.get(DecodeShape(rows, width))
        return None if found is None else found.graph

    def release(self) -> None:
        """Drops all recordings; decode steps are eager until they are recorded again."""
        self._recorded.clear()
        self._device.retire_pool()

    def _eager_reason(self, shape: DecodeShape) -> str:
        if not self._rungs:
            return SWITCHED_OFF
        if shape.rows > self._rungs[-1]:
            return ABOVE_LADDER
        wider = [width for width in self._widths if width >= shape.width]
        rungs = [DecodeShape(self._place[shape.rows], width) for width in wider]
        if any(rung in self._recorded for rung in rungs):
            return NEAR_LIMIT
        return NOT_RECORDED if any(rung in self.refused for rung in rungs) else UNEXPECTED

    def _refuse(self, shape: DecodeShape, reason: str) -> None:
        self.refused[shape] = reason
        _log.warning("graph_not_recorded", rows=shape.rows, width=shape.width, reason=reason)


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
