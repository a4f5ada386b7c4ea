"""Metadata of steps on the host; one producer of it, and no second path."""

from __future__ import annotations

import ast
from pathlib import Path

import antiphon_llm.engine
import numpy as np
import pytest
from antiphon_llm.engine.cuda.graphs import DecodeShape
from antiphon_llm.engine.plan import PlannedRow, RowShape

from .decode_bench import (
    ENTRY_TOKENS,
    ROWS,
    WIDTH,
    Bench,
    contents,
    decode_row,
)


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
