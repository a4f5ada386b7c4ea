"""From a checkpoint to a runner on this machine's processor: weights, memory, KV pool."""

from __future__ import annotations

import antiphon_kernels
from antiphon_core.memory import available_bytes
from antiphon_nn.checkpoint import Checkpoint

from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.pool import KvPool
from antiphon_llm.messages import EngineConfig
from antiphon_llm.models.decoder import Decoder
from antiphon_llm.models.registry import build_model
from antiphon_llm.speculation.build import Drafting, load_drafting

from .adapters.build import serve_adapters
from .batch import BatchBuilder
from .built import BuiltEngine, Phase, size_of_pool
from .cpu_runner import CpuRunner, logits_bytes
from .host_memory import HostLedger
from .runner import layer_caches


def build(config: EngineConfig, checkpoint: Checkpoint, phase: Phase) -> BuiltEngine:
    """Loads the weights as they are stored, takes what every step needs, and sizes the pool.

    Raises PoolTooSmall with the memory's table when no pool fits, or when a configured size
    does not.
    """
    with phase("load_weights"):
        model = build_model(checkpoint)
        drafting = load_drafting(config, checkpoint, model)
        serve_adapters(config, model)
    fields = [*model.kv_fields(config.entry_tokens), *drafting.fields]
    with phase("allocate_kv"):
        ledger = _ledger(config, model, drafting)
        size = size_of_pool(config, model, ledger, fields)
        pool = KvPool(fields, entries=size.entries)
    model.workspace.reserve(config.step_tokens)
    tables = BlockTables(
        EntryAllocator(size.entries),
        rows=config.max_rows,
        entry_tokens=config.entry_tokens,
        context_limit=size.context_limit,
    )
    drafter = drafting.open(tables, pool)
    builder = BatchBuilder(
        tables,
        step_tokens=config.step_tokens,
        max_rows=config.max_rows,
        slots=config.overlap_depth + 1,
    )
    runner = CpuRunner(
        model,
        layer_caches(model.kv_rows, pool),
        builder,
        max_rows=config.max_rows,
        overlap_depth=config.overlap_depth,
        draft_depth=config.draft_depth,
        drafter=drafter,
    )
    ledger.check({"workspace": model.workspace.nbytes, "logits": runner.logits_bytes})
    return BuiltEngine(
        model,
        tables,
        pool,
        size,
        runner,
        antiphon_kernels.implementations(),
        fallbacks=lambda: {
            **antiphon_kernels.fallbacks,
            **model.programs.fallbacks,
            **runner.fallbacks,
            **drafting.fallbacks(),
        },
        counters=drafting.counters,
        memory={row.name: row.predicted for row in ledger.rows},
        affordable_tokens=lambda: None,
        drafter=drafter,
    )


def _ledger(config: EngineConfig, model: Decoder, drafting: Drafting) -> HostLedger:
    return HostLedger(
        available=available_bytes(),
        share=config.memory_share,
        weights=model.weight_bytes + drafting.weight_bytes,
        workspace=model.workspace.predict_bytes(config.step_tokens),
        logits=logits_bytes(config.max_rows, model.vocab_size, config.draft_depth),
        reserved=config.reserved_bytes,
        parked=config.parked_bytes,
        drafter=drafting.work_bytes,
        adapters=config.adapter_bytes if config.adapters_dir else 0,
    )
