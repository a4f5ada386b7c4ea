"""Building a device engine: measured memory, the pool that follows, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from antiphon_kernels.quant_linear import PackedWeight, pack
from antiphon_llm.engine.cuda.boot import affordable_tokens, build
from antiphon_llm.engine.cuda.device import Graph, HostDevice
from antiphon_llm.engine.cuda.ledger import DeviceLedger
from antiphon_llm.engine.runner import layer_caches
from antiphon_llm.kvcache.sizing import SAFETY_BYTES, PoolTooSmall
from antiphon_llm.messages import EngineConfig
from structlog.testing import capture_logs

from bench.random_qwen3 import Qwen3Shape, RandomCheckpoint

TINY = Qwen3Shape("tiny", 64, 96, 3, 4, 2, tied=True, head_dim=16, vocabulary=300)
MIB = 1 << 20


class CountedDevice(HostDevice):
    """A host that says it has a device's memory, part of which others hold."""

    def __init__(self, *, total: int, foreign: int, weights: int, peak: int) -> None:
        super().__init__()
        self._readings = (total - foreign, total)
        self._weights, self._peak = weights, peak

    def free_and_total(self) -> tuple[int, int]:
        return self._readings

    def free_now(self, size: int) -> None:
        self._readings = (size, self._readings[1])

    def allocated(self) -> tuple[int, int]:
        return self._weights, self._weights + self._peak


class Phases:
    def __init__(self) -> None:
        self.names: list[str] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.names.append(name)
        yield


def config(**changes: Any) -> EngineConfig:
    return EngineConfig(
        **{
            "model_path": "tiny", "device": "cuda", "max_rows": 4, "step_tokens": 64,
            "prefill_chunk": 32, "context_limit": 256, "overlap_depth": 1, **changes,
        }
    )  # fmt: skip


def checkpoint() -> RandomCheckpoint:
    return RandomCheckpoint(TINY, torch.device("cpu"), torch.bfloat16)


def device(**changes: int) -> CountedDevice:
    sizes = {"total": 1024 * MIB, "foreign": 100 * MIB, "weights": 50 * MIB, "peak": 30 * MIB}
    return CountedDevice(**{**sizes, **changes})


ENTRY_BYTES = 3 * 2 * 16 * 2 * 16 * 2


def scarce(entries: int, reserved: int) -> CountedDevice:
    """Room for so many entries, and the null one, after all that the ledger lists."""
    others = {"foreign": 100 * MIB, "weights": 50 * MIB, "peak": 30 * MIB}
    room = SAFETY_BYTES + (entries + 1) * ENTRY_BYTES
    return device(total=sum(others.values()) + reserved + room, **others)


def test_phases_and_a_pool_no_larger_than_all_rows_can_fill() -> None:
    phases = Phases()
    built = build(config(), checkpoint(), phases, device=device())
    assert phases.names == ["load_weights", "measure_memory", "allocate_kv", "record_graphs"]
    assert built.size.entries == 4 * 256 // 16
    assert {field.dtype for field in built.pool.fields} == {torch.bfloat16}
    assert built.kernels["weights"] == "dense bfloat16, dequantised at load"
    assert built.counters()["graph: replay"] == 0 and built.fallbacks() == {}
    assert built.tables.allocator.used == 0


def test_the_pool_takes_what_the_ledger_leaves() -> None:
    settings = {"context_limit": 0, "memory_share": 1.0, "reserved_bytes": 40 * MIB}
    built = build(config(**settings), checkpoint(), Phases(), device=scarce(10, reserved=40 * MIB))
    assert built.size.narrowed and built.size.entries == 10
    assert built.substitutions() == {"context narrowed": 1}
    assert built.pool.bytes == 11 * ENTRY_BYTES
    assert built.size.context_limit == 160


def test_a_configured_context_that_does_not_fit_is_refused_with_the_table() -> None:
    with pytest.raises(PoolTooSmall, match=r"largest that fits is 160(.|\n)*weights(.|\n)*kv room"):
        build(config(memory_share=1.0), checkpoint(), Phases(), device=scarce(10, reserved=0))


def test_too_little_memory_prints_the_table() -> None:
    with pytest.raises(PoolTooSmall, match=r"(.|\n)*activations +31,457,280  measured(.|\n)*"):
        build(config(), checkpoint(), Phases(), device=device(total=300 * MIB))


def test_after_a_shortage_the_memory_is_measured_anew() -> None:
    machine = device()
    built = build(config(), checkpoint(), Phases(), device=machine)
    machine.free_now(15 * MIB)
    assert built.affordable_tokens() == 32, "half of the 30 MiB that 64 tokens took"
    machine.free_now(0)
    assert built.affordable_tokens() == 0
    assert affordable_tokens(machine, step_tokens=64, activations=0) is None


class PackedCheckpoint(RandomCheckpoint):
    def _linear(self, name: str) -> PackedWeight:
        return pack(self._tensor(name))


def test_a_part_that_cannot_be_recorded_keeps_decode_steps_eager_and_is_named(
    default_logging: None,
) -> None:
    def packed() -> PackedCheckpoint:
        return PackedCheckpoint(TINY, torch.device("cpu"), torch.float32)

    with capture_logs() as logs:
        built = build(config(dtype="float32"), packed(), Phases(), device=device())
    told = next(line for line in logs if line["event"] == "graph_ability")
    assert (told["decode"], told["prefill"]) == (False, False)
    assert told["culprits"] == {key: ["Embedding", "Linear"] for key in ("decode", "prefill")}
    assert built.runner.options.graphs is False
    assert built.substitutions() == {
        f"{step} graphs: {part} cannot be recorded": 1
        for step in ("decode", "prefill")
        for part in ("Embedding", "Linear")
    }
    with pytest.raises(ValueError, match="graphs is 'on', but Embedding, Linear cannot be"):
        build(config(dtype="float32", graphs="on"), packed(), Phases(), device=device())
    chosen = config(dtype="float32", graphs="off")
    assert build(chosen, packed(), Phases(), device=device()).substitutions() == {}


class Unrecording(CountedDevice):
    def record(self, work: Callable[[], None]) -> Graph:
        raise torch.OutOfMemoryError("no room for a recording")


def test_graphs_that_were_insisted_on_refuse_and_automatic_ones_are_counted() -> None:
    sizes = {"total": 1024 * MIB, "foreign": 100 * MIB, "weights": 50 * MIB, "peak": 30 * MIB}
    with pytest.raises(ValueError, match=r"graphs is 'on'.*1 rows: .*no room for a recording"):
        build(config(graphs="on"), checkpoint(), Phases(), device=Unrecording(**sizes))
    built = build(config(), checkpoint(), Phases(), device=Unrecording(**sizes))
    steps = [f"{rows} rows" for rows in (4, 3, 2, 1)]
    steps += [f"{tokens} tokens in contexts up to 256" for tokens in (64, 48, 32, 16)]
    assert list(built.substitutions()) == [
        f"graph of {step}: OutOfMemoryError: no room for a recording" for step in steps
    ]


def test_ledger_closes() -> None:
    ledger = DeviceLedger(
        total=1000, share=0.9, foreign=100, weights=300, buffers=20, activations=50, graphs=30,
        reserved=10,
    )  # fmt: skip
    assert ledger.kv_room + sum(row.bytes for row in ledger.rows) == 900
    assert "kv room" in ledger.table() and len(ledger.table().splitlines()) == 9


def test_every_layer_is_bound_to_fields_of_its_own() -> None:
    built = build(config(), checkpoint(), Phases(), device=device())
    caches = layer_caches(built.model.kv_rows, built.pool)
    assert len(caches) == TINY.layers
    slots = (built.size.entries + 1) * 16
    for cache in caches:
        assert cache.keys.shape == cache.values.shape == (slots, TINY.kv_heads, TINY.head_dim)
    places = [tensor.data_ptr() for cache in caches for tensor in (cache.keys, cache.values)]
    assert len(set(places)) == 2 * TINY.layers
