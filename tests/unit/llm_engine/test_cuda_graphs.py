"""The ladder of recorded decode steps: order, routes, refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from antiphon_llm.engine.cuda.device import WARM_UPS, Graph, HostDevice
from antiphon_llm.engine.cuda.graphs import DecodeGraphs, DecodeShape, ladder
from antiphon_llm.engine.cuda.recordings import MovedTensor


def test_ladder() -> None:
    assert ladder(1) == [1]
    assert ladder(20) == [1, 2, 3, 4, 5, 6, 7, 8, 16, 20]
    assert ladder(160)[-5:] == [112, 120, 128, 144, 160]
    with pytest.raises(ValueError, match="at least 1"):
        ladder(0)


class Recorder(HostDevice):
    """Counts runs, and fails to record some shapes."""

    def __init__(self, failures: dict[DecodeShape, BaseException]) -> None:
        super().__init__()
        self.failures = failures
        self.order: list[DecodeShape] = []
        self.now = DecodeShape(0)

    def record(self, work: Callable[[], None]) -> Graph:
        self.order.append(self.now)
        if self.now in self.failures:
            raise self.failures[self.now]
        return super().record(work)


class Recording:
    def __init__(
        self,
        failures: dict[DecodeShape, BaseException] | None = None,
        rows_max: int = 16,
        widths: tuple[int, ...] = (1,),
    ) -> None:
        self.device = Recorder(failures or {})
        self.graphs = DecodeGraphs(
            self.device, rows_max=rows_max, enabled=True, debug=True, widths=widths
        )
        self.runs: list[DecodeShape] = []
        self.tensors = {"ids": torch.zeros(4)}
        self.graphs.record(self.work, lambda shape: self.tensors)

    def work(self, shape: DecodeShape) -> Callable[[], None]:
        self.device.now = shape
        return lambda: self.runs.append(shape)

    def run(self, live: int, width: int = 1, room: int = 99) -> DecodeShape:
        shape = self.graphs.route(live, width, room=room)
        before = len(self.runs)
        self.graphs.run(shape, live, self.work(shape), lambda: self.tensors)
        assert self.runs[before:] == [shape]
        return shape


def test_rungs_are_recorded_largest_first_and_every_key_is_reached() -> None:
    recording = Recording()
    rungs = [DecodeShape(rows) for rows in ladder(16)]
    assert recording.device.order == list(reversed(rungs))
    assert len(recording.runs) == WARM_UPS * len(rungs)
    assert {recording.run(live) for live in range(1, 17)} == set(rungs)
    assert recording.graphs.counters == {"graph: replay": 16, "graph: pad rows": 28}


def test_each_width_has_a_ladder_and_narrower_windows_are_padded_to_it() -> None:
    recording = Recording(rows_max=3, widths=(1, 5))
    shapes = [(rows, width, 0) for width in (5, 1) for rows in (3, 2, 1)]
    assert recording.device.order == shapes
    assert recording.run(2) == (2, 1, 0)
    assert recording.run(2, 5) == (2, 5, 0) and recording.run(2, 3) == (2, 5, 0)
    assert not recording.graphs.eager
    assert recording.run(2, 3, room=4) == (2, 3, 0), "a row has no place for the padding"
    assert recording.graphs.eager == {"near the context limit": 1}
    assert recording.run(4, 5) == (4, 5, 0)
    assert recording.graphs.eager["above ladder"] == 1


def test_steps_above_the_ladder_take_the_same_python() -> None:
    recording = Recording(rows_max=4)
    assert recording.run(5) == (5, 1, 0)
    assert recording.graphs.counters["graph: eager, above ladder"] == 1
    recording.graphs.release()
    assert recording.run(2) == (2, 1, 0)
    assert recording.graphs.counters["graph: eager, unexpected"] == 1, "nothing refused it"


def test_a_rung_without_memory_stays_eager_and_the_rest_is_recorded() -> None:
    recording = Recording({DecodeShape(8): torch.OutOfMemoryError("no room")})
    assert list(recording.graphs.recordings.refused) == [(8, 1, 0)]
    assert recording.run(8) == (8, 1, 0) and recording.run(7) == (7, 1, 0)
    assert recording.run(9) == (16, 1, 0)
    assert recording.graphs.counters["graph: eager, not recorded"] == 1


def test_an_aborted_recording_ends_the_sweep() -> None:
    recording = Recording({DecodeShape(8): RuntimeError("capture was invalidated")})
    assert recording.device.order == [(16, 1, 0), (8, 1, 0)]
    assert recording.run(16) == (16, 1, 0) and recording.run(9) == (16, 1, 0)
    assert recording.run(3) == (3, 1, 0)
    assert recording.graphs.counters["graph: eager, not recorded"] == 1
    assert set(recording.graphs.recordings.refused) == {DecodeShape(rows) for rows in range(1, 9)}
    recording.device.failures.clear()
    recording.graphs.record(recording.work, lambda shape: recording.tensors)
    assert not recording.graphs.recordings.refused, "a later sweep stands for itself"
    assert recording.run(3) == (3, 1, 0) and recording.graphs.eager == {"not recorded": 1}


def test_a_moved_tensor_is_named_before_a_replay() -> None:
    recording = Recording()
    recording.tensors = {"ids": torch.zeros(400)}
    with pytest.raises(MovedTensor, match="ids has moved"):
        recording.run(4)


def test_graphs_that_are_off_count_as_off() -> None:
    graphs = DecodeGraphs(HostDevice(), rows_max=4, enabled=False, debug=False)
    ran: list[int] = []
    assert graphs.route(3) == (3, 1, 0)
    graphs.run(DecodeShape(3), 3, lambda: ran.append(3), dict)
    assert ran == [3] and graphs.eager == {"off": 1}
