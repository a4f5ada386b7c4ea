"""Decode metadata, device tables and the ladder of graphs, on the host."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from pathlib import Path

import antiphon_llm.engine
import numpy as np
import pytest
import torch
from antiphon_llm.engine.cuda.decode_path import DecodeMeta, DecodePath
from antiphon_llm.engine.cuda.device import WARM_UPS, Graph, HostDevice
from antiphon_llm.engine.cuda.graphs import DecodeGraphs, DecodeShape, ladder
from antiphon_llm.engine.cuda.prefill_path import PrefillPath
from antiphon_llm.engine.cuda.recordings import MovedTensor
from antiphon_llm.engine.cuda.tables import DeviceTables
from antiphon_llm.engine.plan import PlannedRow, RowShape
from antiphon_llm.engine.request import Request, State, Timings
from antiphon_llm.engine.uploads import StepUploads
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables

ROWS, ENTRY_TOKENS, CONTEXT, STEP_TOKENS, WIDTH = 6, 4, 80, 64, 5
CPU = torch.device("cpu")


class Bench:
    """Tables on host and device, both paths, and requests to put into steps."""

    def __init__(self) -> None:
        self.tables = BlockTables(
            EntryAllocator(120), rows=ROWS, entry_tokens=ENTRY_TOKENS, context_limit=CONTEXT
        )
        self.device = DeviceTables(self.tables, CPU, step_tokens=STEP_TOKENS)
        self.decode = DecodePath(self.tables, self.device, device=CPU, max_width=WIDTH)
        self.prefill = PrefillPath(self.tables, self.device, step_tokens=STEP_TOKENS, device=CPU)
        self.uploads = StepUploads(HostDevice(), slots=1, mode="packed")
        self.group = self.uploads.group("decode", {**self.decode.targets, **self.device.targets})
        self.prefill_group = self.uploads.group("prefill", self.prefill.targets)
        self.whole_group = self.uploads.group("tables", self.device.whole_targets)

    def request(self, tokens: list[int], held: int = 0) -> Request:
        request = Request("r", 1, tokens, len(tokens), 9, Timings(0.0))
        request.row = self.tables.open()
        request.state = State.DECODING
        self.tables.extend(request.row, max(held, len(tokens)))
        return request

    def prepare_tables(self, rows: Iterable[int]) -> None:
        self.device.prepare(rows, uploads=self.group, whole_uploads=self.whole_group)

    def publish_tables(self) -> None:
        self.group.publish()
        self.whole_group.publish()
        self.device.publish()

    def step(self, live: list[PlannedRow], rows: int, width: int = 1) -> DecodeMeta:
        """A published decode step with its tables gathered, as the recorded work does."""
        self.uploads.open()
        self.prepare_tables(row.request.row for row in live)
        meta = self.decode.prepare(live, shape=DecodeShape(rows, width), uploads=self.group)
        self.publish_tables()
        self.uploads.seal()
        torch.index_select(self.device.tensor, 0, meta.table_row, out=meta.block_table)
        return meta


def decode_row(request: Request, start: int) -> PlannedRow:
    return PlannedRow(request, start, RowShape(1, draws=1), request.epoch)


def contents(meta: DecodeMeta, rows: int) -> dict[str, list[object]]:
    """What the first rows say."""
    return {
        name: tensor[: rows + 1 if name == "query_start" else rows].tolist()
        for name, tensor in meta.tensors().items()
    }


def test_metadata_equals_a_row_by_row_builder(rng: np.random.Generator) -> None:
    bench = Bench()
    requests = [
        bench.request(rng.integers(0, 1000, int(rng.integers(2, 40))).tolist(), held=50)
        for _ in range(ROWS)
    ]
    for _ in range(50):
        chosen = [requests[i] for i in rng.permutation(ROWS)[: int(rng.integers(1, ROWS + 1))]]
        live = [
            decode_row(request, len(request.tokens) - int(rng.integers(0, 2))) for request in chosen
        ]
        meta = bench.step(live, len(live))
        for index, row in enumerate(live):
            request, start = row.request, row.start
            known = start < len(request.tokens)
            entry = int(bench.tables.table[request.row][start // ENTRY_TOKENS])
            assert int(meta.input_ids[index]) == (
                request.tokens[start] if known else -1 - request.row
            )
            assert int(meta.positions[index]) == start
            assert int(meta.context_len[index]) == start + 1
            assert int(meta.write_slot[index]) == entry * ENTRY_TOKENS + start % ENTRY_TOKENS
            assert int(meta.query_start[index]) == index
            assert meta.block_table[index].tolist() == bench.tables.table[request.row].tolist()


def test_padding_is_null_and_leaves_live_rows_as_they_are() -> None:
    bench = Bench()
    live = [decode_row(bench.request([1, 2, 3, 4, 5]), 4), decode_row(bench.request([7] * 9), 9)]
    bench.tables.extend(live[1].request.row, 10)
    exact = contents(bench.step(live, 2), 2)
    padded = bench.step(live, 5)
    assert contents(padded, 2) == exact
    assert padded.context_len[2:].tolist() == [1, 1, 1]
    assert padded.write_slot[2:].tolist() == [0, 0, 0], "padding writes the null entry"
    assert not padded.block_table[2:].any(), "and reads it"
    assert padded.input_ids[2:].tolist() == padded.positions[2:].tolist() == [0, 0, 0]
    assert padded.query_start.tolist() == [0, 1, 2, 3, 4, 5]
    recording = bench.step([], 3)
    assert recording.context_len.tolist() == [1, 1, 1] and not recording.block_table.any()


def test_windows_feed_drafts_and_pad_to_the_recorded_width(rng: np.random.Generator) -> None:
    bench = Bench()
    live, known = [], []
    for length, drafts in ((7, (11, 12)), (14, (13, -1)), (31, (-1, -1))):
        tokens = rng.integers(0, 1000, length).tolist()
        request = bench.request(tokens, held=length + len(drafts))
        shape = RowShape(1 + len(drafts), draws=1 + len(drafts))
        live.append(PlannedRow(request, length - 1, shape, request.epoch, drafts))
        known.append(tokens[-1])
    exact, padded = bench.step(live, 3, 3), bench.step(live, 4, WIDTH)
    assert (exact.max_query, padded.max_query) == (3, WIDTH)
    assert exact.query_start.tolist() == [0, 3, 6, 9]
    assert padded.query_start.tolist() == [0, 5, 10, 15, 20]
    assert padded.context_len.tolist() == [11, 18, 35, WIDTH]
    ids, positions, slots = (
        getattr(padded, name).view(4, WIDTH).tolist()
        for name in ("input_ids", "positions", "write_slot")
    )
    assert ids == [
        [known[0], 11, 12, 0, 0], [known[1], 13, 0, 0, 0], [known[2], 0, 0, 0, 0], [0] * WIDTH
    ]  # fmt: skip
    assert slots[3] == positions[3] == [0] * WIDTH, "a padding row lies on the null entry"
    for index, row in enumerate(live):
        assert positions[index] == list(range(row.start, row.start + WIDTH))
        held = np.zeros(3, dtype=np.int64)
        bench.tables.write_slots(row.request.row, row.start, 3, held)
        assert slots[index] == [*held.tolist(), 0, 0], "what no draft needs writes the null entry"


def test_views_of_a_row_count_never_move() -> None:
    bench = Bench()
    row = decode_row(bench.request([1, 2, 3]), 2)
    first = bench.step([row], 4)
    addresses = {name: tensor.data_ptr() for name, tensor in first.tensors().items()}
    bench.step([row], 1)
    again = bench.step([row], 4)
    assert again is first
    assert {name: tensor.data_ptr() for name, tensor in again.tensors().items()} == addresses


def test_more_live_rows_than_the_step_has_are_refused() -> None:
    bench = Bench()
    rows = [decode_row(bench.request([1, 2]), 1) for _ in range(3)]
    bench.uploads.open()
    with pytest.raises(ValueError, match="3 live rows in a decode step of 2"):
        bench.decode.prepare(rows, shape=DecodeShape(2), uploads=bench.group)


def test_device_tables_follow_the_host_and_send_only_what_changed(
    rng: np.random.Generator,
) -> None:
    bench = Bench()
    open_rows: dict[int, int] = {}
    for _ in range(300):
        action = int(rng.integers(0, 4))
        if action == 0 and len(open_rows) < ROWS:
            row = bench.tables.open()
            open_rows[row] = 0
        elif action == 1 and open_rows:
            row = int(rng.choice(list(open_rows)))
            bench.tables.close(row)
            del open_rows[row]
        for row in open_rows:
            room = min(CONTEXT, open_rows[row] + int(rng.integers(0, 9)))
            bench.tables.extend(row, room)
            open_rows[row] = room
        chosen = [row for row in open_rows if rng.random() < 0.7]
        bench.uploads.open()
        bench.prepare_tables(chosen)
        bench.publish_tables()
        bench.uploads.seal()
        for row in chosen:
            assert bench.device.tensor[row].tolist() == bench.tables.table[row].tolist()
        assert not bench.device.tensor[ROWS].any(), "the null row stays null"
    sent = bench.device.counters["table places"]
    assert sent > 0
    bench.uploads.open()
    bench.prepare_tables(chosen)
    bench.publish_tables()
    bench.uploads.seal()
    assert bench.device.counters["table places"] == sent, "nothing new, nothing sent"


def test_a_table_update_that_was_not_published_is_sent_again() -> None:
    bench = Bench()
    request = bench.request([1] * 30)
    bench.uploads.open()
    bench.prepare_tables([request.row])
    bench.uploads.seal()
    assert not bench.device.tensor.any()
    bench.step([decode_row(request, 29)], 1)
    held = bench.tables.table[request.row].tolist()
    assert bench.device.tensor[request.row].tolist() == held


def test_rows_beyond_a_steps_room_are_sent_whole_and_like_the_others() -> None:
    bench = Bench()
    requests = [bench.request([1] * CONTEXT) for _ in range(ROWS)]
    assert len(bench.device.places) < ROWS * CONTEXT // ENTRY_TOKENS
    bench.uploads.open()
    bench.prepare_tables([request.row for request in requests])
    bench.uploads.seal()
    assert not bench.device.tensor.any(), "nothing reaches the device beside the upload"
    bench.device.tensor.fill_(9)
    bench.device.tensor[ROWS] = 0
    bench.step([decode_row(request, CONTEXT - 1) for request in requests], ROWS)
    assert bench.device.counters["table rows whole"] == ROWS
    for request in requests:
        held = bench.tables.table[request.row].tolist()
        assert bench.device.tensor[request.row].tolist() == held


def test_prefill_rows_have_memory_of_their_own() -> None:
    bench = Bench()
    decoding, filling = bench.request([1, 2, 3]), bench.request([5] * 20)
    live = [decode_row(decoding, 2)]
    before = contents(bench.step(live, 1), 1)
    parts = [
        PlannedRow(filling, 0, RowShape(12, draws=0), filling.epoch),
        PlannedRow(decoding, 0, RowShape(3, draws=1), decoding.epoch),
    ]
    bench.uploads.open()
    bench.prepare_tables([filling.row, decoding.row])
    batch = bench.prefill.prepare(parts, uploads=bench.prefill_group)
    bench.prefill_group.publish()
    bench.publish_tables()
    bench.uploads.seal()
    bench.prefill.gather(batch)
    assert batch.input_ids.tolist() == [5] * 12 + [1, 2, 3]
    assert batch.positions.tolist() == [*range(12), 0, 1, 2]
    assert batch.query_start.tolist() == [0, 12, 15]
    assert batch.context_len.tolist() == [12, 3]
    assert batch.sample_index.tolist() == [14]
    assert (batch.max_query, batch.max_context) == (12, 12)
    rows = [filling.row, decoding.row]
    assert batch.block_table.tolist() == bench.tables.table[rows].tolist()
    assert contents(bench.decode.views(DecodeShape(1)), 1) == before


def test_metadata_has_one_producer_each() -> None:
    """No second decode path: nothing else makes the records that forwards read."""
    package = Path(antiphon_llm.engine.__file__).parent
    makers: dict[str, set[str]] = {"DecodeMeta": set(), "StepBatch": set()}
    for path in package.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                makers.get(node.func.id, set()).add(path.name)
    assert makers == {
        "DecodeMeta": {"decode_path.py"},
        "StepBatch": {"batch.py", "prefill_path.py"},
    }


def test_recording_has_one_home_and_nothing_asks_whether_it_is_recorded() -> None:
    """No layer or kernel has a path of its own for recordings, and no id of a row is just that:
    a row of the batch, of the tables and of a query are three things."""
    root = Path(__file__).resolve().parents[3]
    users: dict[str, set[str]] = {}
    for member in ("services/llm", "services/vocoder", "kernels", "libs/nn"):
        for path in (root / member).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                name = getattr(node, "attr", getattr(node, "id", getattr(node, "arg", None)))
                if name in ("graph_pool_handle", "CUDAGraph", "is_current_stream_capturing",
                            "for_replay", "row_id", "row_ids"):  # fmt: skip
                    users.setdefault(name, set()).add(path.name)
    assert users == {name: {"graph_recorder.py"} for name in ("graph_pool_handle", "CUDAGraph")}


def test_no_model_function_takes_a_location() -> None:
    """Where keys go is read from the metadata in one place, and handed on by nobody."""
    models = Path(antiphon_llm.engine.__file__).parents[1] / "models"
    functions = [
        node
        for path in models.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    named = {
        argument.arg
        for function in functions
        for argument in (*function.args.args, *function.args.kwonlyargs)
    }
    assert {"positions", "meta", "views"} <= named
    assert not named & {"write_slot", "write_slots", "slots", "slot_mapping", "location"}


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
