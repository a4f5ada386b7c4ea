"""Block tables on the device: they follow the host and send what changed."""

from __future__ import annotations

import numpy as np

from .decode_bench import CONTEXT, ENTRY_TOKENS, ROWS, Bench, decode_row


def test_device_tables_follow_the_host_and_send_only_what_changed(
    rng: np.random.Generator,
) -> None:
    bench = Bench()
    open_rows: dict[int, int] = {}
    chosen: list[int] = []
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
