"""Decode steps recorded as graphs: a ladder of row counts for each width of the rows, one memory
pool, one stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from .device import Device
from .recordings import Recordings

EACH_UP_TO = 8
STEP_8_UP_TO = 128

ABOVE_LADDER = "above ladder"
NOT_RECORDED = "not recorded"
NEAR_LIMIT = "near the context limit"
"""A row has no places for the padding of the recorded width."""
SWITCHED_OFF = "off"
UNEXPECTED = "unexpected"
"""A rung that nothing refused has no recording: a defect, so this count must stay 0."""


class DecodeShape(NamedTuple):
    """What a decode step runs at."""

    rows: int
    width: int = 1
    """Tokens of each row: its last one and its drafts."""
    adapters: int = 0
    """Adapters that its rows may name; 0 where all are the model's own."""

    @property
    def tokens(self) -> int:
        """Of all rows."""
        return self.rows * self.width

    def __str__(self) -> str:
        rows = f"{self.rows} rows" if self.width == 1 else f"{self.rows} rows of {self.width}"
        return f"{rows} with {self.adapters} adapters" if self.adapters else rows


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


def adapter_buckets(slots: int) -> list[int]:
    """Counts of active adapters that are recorded: 0, and powers of two up to all slots."""
    buckets = [0]
    while buckets[-1] < slots:
        buckets.append(max(1, 2 * buckets[-1]))
    return buckets


class DecodeGraphs:
    """Recorded decode steps by row count, width and number of active adapters.

    Attributes:
        replays, pad_rows: steps that a graph ran, and the padding rows in them.
        eager: decode steps that took the Python path, by reason.
        recordings: the graphs by shape.

    Args:
        widths: of the rows that are recorded; narrower rows are padded to the next one.
        adapter_slots: adapters that may be loaded; 0 where none are served.
    """

    def __init__(
        self,
        device: Device,
        *,
        rows_max: int,
        enabled: bool,
        debug: bool,
        widths: Sequence[int] = (1,),
        adapter_slots: int = 0,
    ) -> None:
        self._rungs = ladder(rows_max) if enabled else []
        self._widths = sorted(set(widths))
        self._buckets = adapter_buckets(adapter_slots)
        self._place: list[int] = _places(self._rungs)
        self.recordings: Recordings[DecodeShape] = Recordings(device, debug=debug)
        self.replays = self.pad_rows = 0
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
        """Records ``work(shape)`` for every rung, the largest first."""
        shapes = [
            DecodeShape(rows, width, adapters)
            for rows in self._rungs
            for width in self._widths
            for adapters in self._buckets
        ]
        shapes.sort(key=lambda shape: (shape.tokens, shape.width, shape.adapters), reverse=True)
        self.recordings.record(shapes, work, tensors)

    def route(self, rows: int, width: int = 1, *, room: int = 1, adapters: int = 0) -> DecodeShape:
        """What a step of ``rows`` live rows of ``width`` tokens runs at: a rung, or just that.

        Each row has places for ``room`` tokens, its own and padding. The rows name so many
        ``adapters``.
        """
        bucket = next(bucket for bucket in self._buckets if bucket >= adapters)
        if rows < len(self._place):
            for recorded in self._widths:
                shape = DecodeShape(self._place[rows], recorded, bucket)
                if width <= recorded <= max(room, width) and shape in self.recordings:
                    return shape
        return DecodeShape(rows, width, bucket)

    def run(
        self,
        shape: DecodeShape,
        live: int,
        work: Callable[[], None],
        tensors: Callable[[], Mapping[str, torch.Tensor]],
    ) -> None:
        """Runs a prepared step at the shape that ``route`` gave."""
        if shape not in self.recordings:
            reason = self._eager_reason(shape)
            self.eager[reason] = self.eager.get(reason, 0) + 1
            work()
            return
        self.recordings.replay(shape, tensors)
        self.replays += 1
        self.pad_rows += shape.rows - live

    def release(self) -> None:
        """Drops all recordings; decode steps are eager until they are recorded again."""
        self.recordings.release()

    def _eager_reason(self, shape: DecodeShape) -> str:
        if not self._rungs:
            return SWITCHED_OFF
        if shape.rows > self._rungs[-1]:
            return ABOVE_LADDER
        wider = [width for width in self._widths if width >= shape.width]
        rungs = [DecodeShape(self._place[shape.rows], width, shape.adapters) for width in wider]
        if any(rung in self.recordings for rung in rungs):
            return NEAR_LIMIT
        refused = any(rung in self.recordings.refused for rung in rungs)
        return NOT_RECORDED if refused else UNEXPECTED


def _places(rungs: list[int]) -> list[int]:
    """For each number of live rows, the smallest rung that holds them."""
    places = [0]
    for rung in rungs:
        places += [rung] * (rung + 1 - len(places))
    if places and rungs:
        places[0] = rungs[0]
    return places if rungs else []
