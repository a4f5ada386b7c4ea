"""The pool's price, the entry allocator and the block tables."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import antiphon_llm
import numpy as np
import pytest
import torch
from antiphon_llm.kvcache.allocator import EntryAllocator, PoolExhausted
from antiphon_llm.kvcache.block_table import BlockTables, UnbackedToken
from antiphon_llm.kvcache.fields import FieldSpec, entry_bytes
from antiphon_llm.kvcache.pool import KvPool, carve
from antiphon_llm.kvcache.row_map import RowMap
from antiphon_llm.kvcache.sizing import SAFETY_BYTES, PoolTooSmall, size_pool
from hypothesis import given, settings
from hypothesis import strategies as st

FIELDS = [
    FieldSpec("0.keys", 16, (2, 24), torch.float32),
    FieldSpec("0.values", 16, (2, 24), torch.float32),
    FieldSpec("1.keys", 4, (1, 5), torch.bfloat16, fill=-1.0),
    FieldSpec("1.scales", 1, (3,), torch.float32),
]


def test_price_equals_carve() -> None:
    pool = KvPool(FIELDS, entries=7)
    assert entry_bytes(FIELDS) == 3072 + 3072 + 256 + 256
    assert pool.bytes == 8 * entry_bytes(FIELDS)
    assert {name: tuple(view.shape) for name, view in pool.views.items()} == {
        "0.keys": (8, 16, 2, 24), "0.values": (8, 16, 2, 24),
        "1.keys": (8, 4, 1, 5), "1.scales": (8, 1, 3),
    }  # fmt: skip


def test_fields_do_not_overlap_and_start_at_their_fill() -> None:
    pool = KvPool(FIELDS, entries=3)
    assert all(not pool.views[name].any() for name in ("0.keys", "0.values", "1.scales"))
    assert (pool.views["1.keys"] == -1).all()
    for number, view in enumerate(pool.views.values()):
        view.fill_(number + 1)
    assert [float(view.max()) for view in pool.views.values()] == [1, 2, 3, 4]
    assert [float(view.min()) for view in pool.views.values()] == [1, 2, 3, 4]


def test_spare_units_lie_behind_the_entries_of_their_field_alone() -> None:
    fields = [FIELDS[0], FieldSpec("draft.keys", 4, (1, 5), torch.float32, spare_units=3)]
    pool = KvPool(fields, entries=7)
    assert pool.entry_bytes == entry_bytes(fields) == 3072 + 256
    assert pool.bytes == 8 * pool.entry_bytes + 3 * 256
    assert len(pool.views["0.keys"]) == 8 and len(pool.views["draft.keys"]) == 11
    pool.views["draft.keys"].fill_(1.0)
    assert not pool.views["0.keys"].any()


def test_an_entry_lives_once_for_each_time_it_is_taken() -> None:
    allocator = EntryAllocator(3)
    first = allocator.take(2)
    allocator.give_back(first[:1])
    assert allocator.take(1) == first[:1]
    assert [allocator.lives[entry] for entry in (*first, 3)] == [2, 1, 0]


def test_pool_refuses_repeated_names_and_no_entries() -> None:
    with pytest.raises(ValueError, match="repeat"):
        KvPool([FIELDS[0], FIELDS[0]], entries=1)
    with pytest.raises(ValueError, match="at least 1 entry"):
        KvPool(FIELDS, entries=0)


@pytest.mark.parametrize("missing", [1, -1, 256])
def test_a_buffer_of_another_size_is_refused_before_it_is_cut(missing: int) -> None:
    buffer = torch.zeros(8 * entry_bytes(FIELDS) - missing, dtype=torch.uint8)
    with pytest.raises(ValueError, match=f"priced at 53248 bytes .* of {53248 - missing}"):
        carve(buffer, FIELDS, entries=7)


class TestRowMap:
    MIXED = (("a", (2, 16)), ("b", (1, 32)), ("c", (2, 16)))

    def test_two_geometries_are_two_pools_in_one_buffer_and_one_id_space(self) -> None:
        rows = RowMap(self.MIXED)
        assert rows.rows == {(2, 16): {"a": 0, "c": 1}, (1, 32): {"b": 0}}
        fields = rows.fields(4, torch.float32)
        pool = KvPool(fields, entries=5)
        assert pool.entry_bytes == entry_bytes(fields) == 6 * 4 * 32 * 4
        bound = {module: rows.bind(pool, module) for module in rows}
        assert list(bound) == ["a", "b", "c"]
        assert [tuple(keys.shape) for keys, _ in bound.values()] == [
            (24, 2, 16), (24, 1, 32), (24, 2, 16),
        ]  # fmt: skip
        for number, (keys, values) in enumerate(bound.values()):
            keys.fill_(2 * number + 1)
            values.fill_(2 * number + 2)
        held = [float(part.min()) for pair in bound.values() for part in pair]
        assert held == [float(part.max()) for pair in bound.values() for part in pair]
        assert held == [1, 2, 3, 4, 5, 6]

    def test_a_module_that_was_not_counted_is_not_bound(self) -> None:
        rows = RowMap(self.MIXED)
        pool = KvPool(rows.fields(4, torch.float32), entries=2)
        with pytest.raises(LookupError, match="'d' has no row in the KV pool; known: a, b, c"):
            rows.bind(pool, "d")
        with pytest.raises(LookupError, match=r"no field 'd\.keys'"):
            RowMap([("d", (2, 16))]).bind(pool, "d")
        with pytest.raises(ValueError, match=r"'b' caches \(2, 16\), its pool holds \(1, 32\)"):
            RowMap([("b", (2, 16))]).bind(pool, "b")
        with pytest.raises(ValueError, match="'a' was built twice"):
            RowMap([*self.MIXED, self.MIXED[0]])


def test_one_entry_count_reaches_the_pool_and_its_allocator() -> None:
    """Nothing defaults the count or takes it by place, and who makes both passes the same."""
    for sized in (KvPool, carve):
        count = inspect.signature(sized).parameters["entries"]
        assert count.kind is count.KEYWORD_ONLY and count.default is count.empty
    paired = []
    for path in sorted(Path(antiphon_llm.__file__).parent.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                pools, allocators = _entry_counts(function)
                if pools and allocators:
                    assert pools == allocators, f"{path.name}: {pools} and {allocators}"
                    paired.append(f"{path.parent.name}/{path.name}")
    assert paired == ["cuda/boot.py", "engine/host_boot.py"]


def _entry_counts(function: ast.FunctionDef) -> tuple[set[str], set[str]]:
    """What a function passes as the count to pools and to allocators, as source text."""
    pools: set[str] = set()
    allocators: set[str] = set()
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            if call.func.id == "KvPool":
                named = {word.arg: ast.unparse(word.value) for word in call.keywords}
                pools.add(named["entries"])
            elif call.func.id == "EntryAllocator":
                allocators.update(map(ast.unparse, call.args))
    return pools, allocators


def test_allocator_never_issues_the_null_entry_and_refuses_double_free() -> None:
    allocator = EntryAllocator(5)
    taken = allocator.take(5)
    assert sorted(taken) == [1, 2, 3, 4, 5]
    with pytest.raises(PoolExhausted):
        allocator.take(1)
    allocator.give_back(taken[:2])
    with pytest.raises(RuntimeError, match="not held"):
        allocator.give_back(taken[:1])
    with pytest.raises(RuntimeError, match="not held"):
        allocator.give_back([0])
    allocator.check_integrity(taken[2:])
    with pytest.raises(RuntimeError, match="do not add up"):
        allocator.check_integrity(taken[3:])


def test_a_refused_take_takes_nothing() -> None:
    allocator = EntryAllocator(3)
    with pytest.raises(PoolExhausted):
        allocator.take(4)
    assert allocator.free == 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), max_size=40))
def test_tables_follow_any_history_of_opens_extends_and_closes(
    events: list[tuple[int, int]],
) -> None:
    tables = BlockTables(EntryAllocator(40), rows=4, entry_tokens=4, context_limit=40)
    open_rows: dict[int, tuple[int, int]] = {}
    for name, length in events:
        if name in open_rows and length % 5 == 0:
            tables.close(open_rows.pop(name)[0])
        else:
            row, known = open_rows.get(name) or (tables.open(), 0)
            assert tables.need(row, length) == max(0, -(-length // 4) - -(-known // 4))
            tables.extend(row, length)
            open_rows[name] = (row, max(known, length))
        check(tables)
    slots = [slot for row, known in open_rows.values() for slot in _slots(tables, row, 0, known)]
    assert len(set(slots)) == len(slots)
    assert all(slot >= 4 for slot in slots), "the null entry is in use"
    for row, _ in open_rows.values():
        tables.close(row)
    check(tables)
    assert tables.allocator.used == 0


def test_write_slots_are_the_table_formula_for_any_span() -> None:
    tables = BlockTables(EntryAllocator(20), rows=2, entry_tokens=4, context_limit=40)
    first, second = tables.open(), tables.open()
    for length in (3, 9, 17):
        tables.extend(first, length)
        tables.extend(second, length + 4)
    expected = [int(tables.table[second, p // 4]) * 4 + p % 4 for p in range(21)]
    assert _slots(tables, second, 0, 21) == expected
    assert _slots(tables, second, 7, 9) == expected[7:16]
    assert [_slots(tables, second, p, 1)[0] for p in range(21)] == expected


def test_a_token_without_an_entry_is_refused_and_never_lands_on_the_null_entry() -> None:
    tables = BlockTables(EntryAllocator(20), rows=2, entry_tokens=4, context_limit=40)
    row, other = tables.open(), tables.open()
    tables.extend(row, 8)
    tables.extend(other, 40)
    for start, count in ((8, 1), (7, 2), (4, 5)):
        with pytest.raises(UnbackedToken, match=f"table row {row} holds 2 entries"):
            _slots(tables, row, start, count)
    with pytest.raises(UnbackedToken, match="table row -1"):
        _slots(tables, -1, 0, 1)
    both = np.array([other, row])
    assert len(tables.slots_at(both, np.array([39, 7]))) == 2
    for rows, positions in ((both, [39, 8]), (np.array([other, -1]), [0, 0])):
        with pytest.raises(UnbackedToken, match="no entry for its token"):
            tables.slots_at(rows, np.array(positions))


def test_a_row_that_changes_hands_gets_a_new_mapping() -> None:
    tables = BlockTables(EntryAllocator(20), rows=1, entry_tokens=4, context_limit=40)
    row = tables.open()
    tables.extend(row, 4)
    before = tables.mapping(row)
    tables.extend(row, 4)
    assert tables.mapping(row) == before
    tables.extend(row, 5)
    appended = tables.mapping(row)
    assert appended[:2] == before[:2] and appended != before
    tables.close(row)
    assert tables.open() == row
    tables.extend(row, 4)
    assert tables.mapping(row) != before


def test_an_edit_is_a_new_lineage_and_equal_contents_are_none() -> None:
    tables = BlockTables(EntryAllocator(20), rows=2, entry_tokens=4, context_limit=40)
    row, other = tables.open(), tables.open()
    tables.adopt(row, tables.allocator.take(1))
    tables.adopt(row, tables.allocator.take(2))
    tables.extend(other, 8)
    before = tables.mapping(row)
    tables.replace(row, 1, tables.span(row, 1, 3))
    assert tables.mapping(row) == before
    kept, replaced = tables.span(row, 0, 1), tables.span(row, 1, 3)
    theirs = tables.span(other, 0, 2)
    tables.replace(row, 1, theirs)
    assert tables.span(row, 0, 3) == kept + theirs == tables.table[row, :3].tolist()
    assert tables.mapping(row)[1] != before[1] and tables.mapping(row)[2] == 3
    assert tables.detach(row) == kept + theirs and not tables.table[row].any()
    tables.allocator.give_back(replaced)


def check(tables: BlockTables) -> None:
    tables.check_integrity()
    rows = range(len(tables.table))
    tables.allocator.check_integrity(
        entry for row in rows for entry in tables.span(row, 0, tables.held(row))
    )


def _slots(tables: BlockTables, row: int, start: int, count: int) -> list[int]:
    out = np.empty(count, dtype=np.int64)
    tables.write_slots(row, start, count, out)
    return out.tolist()


SIZING = {
    "entry_bytes": 1000, "entry_tokens": 16, "max_rows": 4, "model_limit": 320,
    "context_limit": 0, "kv_entries": 0, "available_bytes": SAFETY_BYTES + 10**6,
    "memory_share": 1.0,
}  # fmt: skip


def test_automatic_pool_is_bounded_by_what_is_useful() -> None:
    size = size_pool(**SIZING)  # type: ignore[arg-type]
    assert (size.entries, size.context_limit, size.narrowed) == (80, 320, False)


def test_automatic_context_narrows_to_the_pool() -> None:
    scarce = {**SIZING, "available_bytes": SAFETY_BYTES + 11_000}
    size = size_pool(**scarce)  # type: ignore[arg-type]
    assert (size.entries, size.context_limit, size.narrowed) == (10, 160, True)


def test_typed_context_refuses_with_the_largest_that_fits_and_that_one_is_accepted() -> None:
    with pytest.raises(PoolTooSmall, match="largest that fits is 160"):
        size_pool(**{**SIZING, "kv_entries": 10, "context_limit": 161})  # type: ignore[arg-type]
    size = size_pool(**{**SIZING, "kv_entries": 10, "context_limit": 160})  # type: ignore[arg-type]
    assert size.context_limit == 160


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"context_limit": 321}, "model's own limit 320"),
        ({"kv_entries": 2000}, "available are 1000000"),
        ({"available_bytes": 0}, "available are 0"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_numbers(change: dict[str, int], named: str) -> None:
    with pytest.raises(PoolTooSmall, match=named):
        size_pool(**{**SIZING, **change})  # type: ignore[arg-type]
