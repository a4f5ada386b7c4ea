"""From a checkpoint to a runner on a device: weights, measured memory, KV pool, graphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from antiphon_core.logs import get_logger
from antiphon_nn.checkpoint import Checkpoint

from antiphon_llm.engine.adapters.build import serve_adapters
from antiphon_llm.engine.built import BuiltEngine, Phase, size_of_pool
from antiphon_llm.engine.runner import layer_caches
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.fields import FieldSpec
from antiphon_llm.kvcache.pool import KvPool
from antiphon_llm.kvcache.sizing import PoolSize
from antiphon_llm.messages import EngineConfig
from antiphon_llm.models.decoder import Decoder
from antiphon_llm.models.registry import build_model
from antiphon_llm.speculation.build import load_drafting

from .device import Device, open_device
from .ledger import DeviceLedger
from .probe import probe_tables, run_probe
from .runner import DeviceRunner, RunnerOptions

_log = get_logger(__name__)

DTYPES = {
    "auto": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}


def build(
    config: EngineConfig, checkpoint: Checkpoint, phase: Phase, *, device: Device | None = None
) -> BuiltEngine:
    """Loads, measures with a small pool, sizes the real one and records over it.

    Matrices become dense in the activations' dtype, whatever format the file has them in.

    Raises PoolTooSmall with the memory's table when no pool fits, or when a configured size
    does not, and ValueError when graphs that the configuration insists on cannot be recorded.
    """
    device = device or open_device(config.device)
    at_start = device.free_and_total()
    with phase("load_weights"):
        model = build_model(
            checkpoint,
            device=device.device,
            dtype=DTYPES[config.dtype],
            fixed_tokens=config.max_rows * (1 + config.draft_depth),
        )
        serve_adapters(config, model)
        drafting = load_drafting(config, checkpoint, model)
        device.synchronize()
    fields = [*model.kv_fields(config.entry_tokens), *drafting.fields]
    options, unrecordable = _options(config, model)
    with phase("measure_memory"):
        ledger = _measure(config, device, model, options, at_start, drafting.work_bytes)
    with phase("allocate_kv"):
        size = size_of_pool(config, model, ledger, fields)
        pool, tables = _allocated(config, device, size, fields)
        drafter = drafting.open(tables, pool)
        views = layer_caches(model.kv_rows, pool)
        runner = DeviceRunner(device, model, views, tables, options, drafter, drafting.matrices)
    with phase("record_graphs"):
        runner.record_graphs()
        if config.graphs == "on" and runner.graphs_refused:
            raise ValueError(_unrecorded(runner.graphs_refused))
    _log.info(
        "device_memory",
        **{row.name: row.bytes for row in ledger.rows},
        kv=pool.bytes,
        graphs_refused=len(runner.graphs_refused),
    )
    return BuiltEngine(
        model,
        tables,
        pool,
        size,
        runner,
        _kernels(device, model),
        fallbacks=lambda: {
            **unrecordable,
            **{f"graph of {shape}: {why}": 1 for shape, why in runner.graphs_refused.items()},
            **drafting.fallbacks(),
        },
        counters=lambda: {**runner.counters, **drafting.counters()},
        memory={row.name: row.bytes for row in ledger.rows},
        affordable_tokens=lambda: affordable_tokens(
            device, step_tokens=config.step_tokens, activations=ledger.activations
        ),
        drafter=drafter,
    )


def _allocated(
    config: EngineConfig, device: Device, size: PoolSize, fields: Sequence[FieldSpec]
) -> tuple[KvPool, BlockTables]:
    pool = KvPool(fields, entries=size.entries, device=device.device)
    tables = BlockTables(
        EntryAllocator(size.entries),
        rows=config.max_rows,
        entry_tokens=config.entry_tokens,
        context_limit=size.context_limit,
    )
    return pool, tables


def _kernels(device: Device, model: Decoder) -> dict[str, str]:
    dtype = str(model.dtype).removeprefix("torch.")
    return {
        "weights": f"dense {dtype}, dequantised at load",
        "operations": "triton and cublas" if device.device.type == "cuda" else "host",
    }


def _options(config: EngineConfig, model: Decoder) -> tuple[RunnerOptions, dict[str, int]]:
    """The runner's part of the configuration, with what is automatic resolved, and, as
    fallbacks, the parts of the model for whose sake steps of a kind are not recorded."""
    ability, culprits = model.graph_ability()
    _log.info("graph_ability", decode=ability.decode, prefill=ability.prefill, culprits=culprits)
    if config.graphs == "on" and not ability.decode:
        names = ", ".join(culprits["decode"])
        raise ValueError(f"graphs is 'on', but {names} cannot be recorded; use auto or off")
    options = RunnerOptions(
        max_rows=config.max_rows,
        step_tokens=config.step_tokens,
        overlap_depth=config.overlap_depth,
        upload_mode="packed" if config.upload_mode == "auto" else config.upload_mode,
        graphs=ability.decode and config.graphs != "off",
        prefill_graphs=ability.prefill,
        graph_rows_max=config.graph_rows_max,
        draft_depth=config.draft_depth,
        adapter_slots=config.adapter_slots if config.adapters_dir else 0,
    )
    kept_back = {
        f"{step} graphs: {name} cannot be recorded": 1
        for step, names in culprits.items()
        for name in names
    }
    return options, kept_back if config.graphs != "off" else {}


def affordable_tokens(device: Device, *, step_tokens: int, activations: int) -> int | None:
    """Tokens whose activations fit what the device can still give, cached memory included.

    ``activations`` bytes were measured for a step of ``step_tokens``; None where they were none.
    """
    if not activations:
        return None
    device.reset_peak()
    free, _ = device.free_and_total()
    return free * step_tokens // activations


def _unrecorded(refused: dict[str, str]) -> str:
    reasons = "; ".join(f"{step}: {reason}" for step, reason in refused.items())
    return f"graphs is 'on', but some could not be recorded ({reasons}); use auto or off"


def _measure(
    config: EngineConfig,
    device: Device,
    model: Decoder,
    options: RunnerOptions,
    at_start: tuple[int, int],
    drafter: int,
) -> DeviceLedger:
    """Runs full-width steps over a pool for them alone, records the graphs and drops both.

    ``at_start`` are the device's free and total bytes before the weights were loaded, ``drafter``
    what a drafter takes beside its weights.
    """
    free, total = at_start
    device.reset_peak()
    weights, _ = device.allocated()
    tables = probe_tables(
        max_rows=config.max_rows,
        step_tokens=config.step_tokens,
        entry_tokens=config.entry_tokens,
        context_limit=config.context_limit or model.spec.context_limit,
        draft_depth=config.draft_depth,
    )
    entries = tables.allocator.entries
    pool = KvPool(model.kv_fields(config.entry_tokens), entries=entries, device=device.device)
    runner = DeviceRunner(device, model, layer_caches(model.kv_rows, pool), tables, options)
    before, _ = device.allocated()
    run_probe(runner, tables, model.vocab_size)
    device.synchronize()
    _, peak = device.allocated()
    runner.record_graphs()
    graphs = runner.graph_bytes
    runner.close()
    ledger = DeviceLedger(
        total=total,
        share=config.memory_share,
        foreign=total - free,
        weights=weights,
        buffers=max(0, before - weights - pool.bytes) if weights else 0,
        activations=max(0, peak - before),
        graphs=graphs,
        drafter=drafter,
        reserved=config.reserved_bytes,
    )
    del runner, pool
    device.reset_peak()
    return ledger
