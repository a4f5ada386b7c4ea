"""From a configuration to a loop that is ready to serve, phase by phase."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import antiphon_kernels
import msgspec
import torch
from antiphon_core.ipc.endpoint import Endpoint
from antiphon_core.logs import get_logger
from antiphon_nn.checkpoint import Checkpoint

from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.host_tier import HostTier
from antiphon_llm.kvcache.prefix_tree import PrefixTree
from antiphon_llm.messages import BootPhase, EngineConfig, Hello, Sampling, Submit
from antiphon_llm.models.bare import open_model
from antiphon_llm.models.registry import architecture_of, tokenizer_fingerprint
from antiphon_llm.output_spec import read_output_spec
from antiphon_llm.speculation.valve import valve_for
from antiphon_llm.structured.grammars import build_grammars, check_grammar_config

from .adapters.build import check_adapter_config, open_adapters
from .built import BuiltEngine, Phase
from .constraint_desk import ConstraintDesk
from .door import Door
from .intake import Intake, ServedModel
from .live import LiveRequests
from .loop import EngineLoop
from .outbox import Outbox
from .readout import Readout
from .readout_files import read_readouts
from .runner import Runner
from .scheduler import Scheduler, SchedulerLimits
from .speculating import Speculation

_log = get_logger(__name__)

DTYPES = {
    "cpu": ("auto", "float32"),
    "cuda": ("auto", "bfloat16", "float16", "float32"),
}
"""What each device computes in."""
CHOICES: dict[str, tuple[int | str, ...]] = {
    "overlap_depth": (0, 1),
    "upload_mode": ("auto", "packed", "direct"),
    "graphs": ("auto", "on", "off"),
    "products": ("auto", "float32", "int16"),
    "drafter": ("", "ngram", "model", "mtp", "eagle3"),
    "draft_accept": ("match", "residual"),
}
"""What each of these settings may be, on any device."""
OWN_CHECKPOINT = ("model", "eagle3")
"""Drafters whose weights are not the model's own."""
WARM_UP_TOKENS = 8


class BootPhases:
    """Tells the front which phase runs, and keeps how long each took."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.current = ""
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Marks a phase; its name stays in ``current`` if it fails."""
        self.current = name
        self._endpoint.send(BootPhase(name))
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


def boot(
    config: EngineConfig,
    endpoint: Endpoint,
    phases: BootPhases,
    vocabulary: Sequence[bytes] = (),
    score_ids: Sequence[int] = (),
) -> EngineLoop:
    """Loads the model, sizes the pool, warms up and says Hello.

    Without the ``vocabulary`` (see Boot) it serves no constraints.

    Raises ValueError (CheckpointError, UnsupportedConfig, PoolTooSmall) for what the
    configuration or the checkpoint has wrong.
    """
    with phases.phase("configure"):
        limits = check_config(config)
        antiphon_kernels.set_threads(config.threads or len(os.sched_getaffinity(0)))
        antiphon_kernels.set_products(config.products)
        checkpoint = open_model(config.model_path)
        eos_ids = end_of_text_ids(checkpoint)
        readouts = read_readouts(checkpoint, score_ids)
    built = _builder_for(config.device)(config, checkpoint, phases.phase)
    output = read_output_spec(checkpoint.config, built.model.vocab_size)
    # An end token may also close a run of speech: replies without any must still end with it.
    speech_ids = () if output is None else sorted({*output.speech_ids} - {*eos_ids})
    loop = _assemble(config, limits, endpoint, built, eos_ids, readouts, speech_ids)
    loop.owners.register("weights", built.model, nbytes=built.model.weight_bytes)
    loop.owners.register("kv", built.pool, nbytes=built.pool.bytes)
    loop.owners.register("runner", built.runner, release=built.runner.close)
    open_adapters(loop, config, built.model)
    with phases.phase("grammars"):
        _open_constraints(loop, config, vocabulary, built.model.vocab_size, eos_ids)
    with phases.phase("warm_up"):
        _warm_up(loop)
    hello = Hello(
        architecture=architecture_of(checkpoint),
        vocab_size=built.model.vocab_size,
        context_limit=built.size.context_limit,
        eos_ids=eos_ids,
        kv_entries=built.size.entries,
        entry_tokens=config.entry_tokens,
        max_rows=config.max_rows,
        weight_bytes=built.model.weight_bytes,
        kv_bytes=built.pool.bytes,
        device=config.device,
        dtype=str(built.model.dtype).removeprefix("torch."),
        kernels=built.kernels,
        boot_seconds=phases.seconds,
        memory={**built.memory, "kv": built.pool.bytes},
        entry_bytes=built.pool.entry_bytes,
        tokenizer=tokenizer_fingerprint(checkpoint),
        embedding_size=readouts["embedding"].width or built.model.spec.hidden_size,
        pooling=readouts["embedding"].pooling,
        labels=readouts["score"].width if "score" in readouts else 0,
        generates=built.model.spec.generates,
    )
    endpoint.send(hello)
    _log.info("engine_ready", **msgspec.to_builtins(hello), substitutions=built.substitutions())
    return loop


def _builder_for(device: str) -> Callable[[EngineConfig, Checkpoint, Phase], BuiltEngine]:
    """Imported late, so that an engine loads nothing of the other kind of device."""
    if device == "cpu":
        from .host_boot import build
    else:
        from .cuda.boot import build
    return build


def check_config(config: EngineConfig) -> SchedulerLimits:
    """What configuration alone can refute; ValueError names the field and what it may be."""
    if config.device not in DTYPES:
        raise ValueError(f"device is {config.device!r}; supported: {', '.join(DTYPES)}")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch finds no CUDA device here")
    dtypes = DTYPES[config.device]
    if config.dtype not in dtypes:
        raise ValueError(
            f"dtype is {config.dtype!r}; supported on {config.device}: {', '.join(dtypes)}"
        )
    if not 0.0 < config.memory_share <= 1.0:
        raise ValueError(f"memory_share must lie in (0, 1], got {config.memory_share}")
    for name in ("context_limit", "kv_entries", "threads", "parked_bytes", "reserved_bytes"):
        if getattr(config, name) < 0:
            raise ValueError(f"{name} must be 0 (automatic) or more, got {getattr(config, name)}")
    check_grammar_config(config)
    check_adapter_config(config)
    for name, served in CHOICES.items():
        if getattr(config, name) not in served:
            raise ValueError(
                f"{name} is {getattr(config, name)!r}; supported: {', '.join(map(str, served))}"
            )
    if not 0 <= config.graph_rows_max <= config.max_rows:
        raise ValueError(
            f"graph_rows_max must lie between 0 and max_rows {config.max_rows}, got "
            f"{config.graph_rows_max}"
        )
    _check_drafting(config)
    return SchedulerLimits(
        max_rows=config.max_rows,
        step_tokens=config.step_tokens,
        prefill_chunk=config.prefill_chunk,
        entry_tokens=config.entry_tokens,
        queue_limit=config.queue_limit,
        batch_rows_max=config.batch_rows_max,
        batch_tokens_max=config.batch_tokens_max,
        tenant_rows_max=config.tenant_rows_max,
        tenant_weights=config.tenant_weights,
    )


def _check_drafting(config: EngineConfig) -> None:
    if bool(config.drafter) != bool(config.draft_depth) or config.draft_depth < 0:
        raise ValueError(
            f"draft_depth is {config.draft_depth} for drafter {config.drafter!r}; it must be 1 or "
            "more with a drafter, and 0 without one"
        )
    if bool(config.draft_model_path) != (config.drafter in OWN_CHECKPOINT):
        raise ValueError(
            f"draft_model_path is {config.draft_model_path!r} for drafter {config.drafter!r}; "
            f"these need one: {', '.join(OWN_CHECKPOINT)}"
        )
    if config.drafter == "ngram" and config.draft_accept == "residual":
        raise ValueError(
            "draft_accept is 'residual' for drafter 'ngram', which draws its drafts from no "
            "distribution; supported: match"
        )
    if config.device != "cpu" and config.draft_accept == "residual":
        raise ValueError(
            f"draft_accept is 'residual' on {config.device}, which is served on cpu; supported "
            "there: match"
        )
    if config.draft_failure_limit < 1 and config.draft_failure_limit != -1:
        raise ValueError(
            f"draft_failure_limit must be 1 or more, or -1 for none, got "
            f"{config.draft_failure_limit}"
        )
    if 1 + config.draft_depth + config.entry_tokens > config.step_tokens:
        raise ValueError(
            f"draft_depth {config.draft_depth} leaves no room for a row with drafts beside one "
            f"entry of {config.entry_tokens} tokens in step_tokens {config.step_tokens}"
        )
    valve_for(config.draft_valve, dense=True)


def end_of_text_ids(checkpoint: Checkpoint) -> list[int]:
    """Ids that end a text: the config's and, of a directory, generation_config.json's."""
    found = _ids(checkpoint.config.get("eos_token_id"))
    generation = Path(checkpoint.path) / "generation_config.json"
    if generation.is_file():
        found |= _ids(json.loads(generation.read_text()).get("eos_token_id"))
    return sorted(found)


def _ids(value: int | list[int] | None) -> set[int]:
    if value is None:
        return set()
    return {value} if isinstance(value, int) else set(value)


def _assemble(
    config: EngineConfig,
    limits: SchedulerLimits,
    endpoint: Endpoint,
    built: BuiltEngine,
    eos_ids: list[int],
    readouts: Mapping[str, Readout],
    speech_ids: Sequence[int],
) -> EngineLoop:
    served = ServedModel(
        built.model.vocab_size,
        built.size.context_limit,
        frozenset(eos_ids),
        config.draft_depth,
        readouts,
        speech_ids,
    )
    parked = config.parked_bytes
    mover = HostTier(built.pool, capacity_bytes=parked) if parked else None
    return assemble_loop(
        endpoint,
        Scheduler(
            limits,
            built.tables,
            _prefix_tree(config, built.tables.allocator),
            mover,
        ),
        built.runner,
        served,
        overlap_depth=config.overlap_depth,
        speculation=_speculation(config, built),
        fallbacks=built.substitutions,
        counters=built.counters,
        affordable_tokens=built.affordable_tokens,
    )


def _speculation(config: EngineConfig, built: BuiltEngine) -> Speculation | None:
    if built.drafter is None:
        return None
    return Speculation(
        built.drafter,
        depth=config.draft_depth,
        adaptive=config.draft_adaptive,
        valve=valve_for(config.draft_valve, dense=built.model.spec.dense),
        failure_limit=config.draft_failure_limit,
        residual=config.draft_accept == "residual",
    )


def _prefix_tree(config: EngineConfig, allocator: EntryAllocator) -> PrefixTree | None:
    """Named after all that keys and values depend on."""
    if not config.prefix_cache:
        return None
    name = f"{config.model_path} {config.dtype} {config.products}"
    return PrefixTree(allocator, fingerprint=name.encode())


def assemble_loop(
    endpoint: Endpoint,
    scheduler: Scheduler,
    runner: Runner[Any],
    served: ServedModel,
    *,
    overlap_depth: int,
    speculation: Speculation | None = None,
    fallbacks: Callable[[], dict[str, int]] = dict,
    counters: Callable[[], dict[str, int]] = dict,
    affordable_tokens: Callable[[], int | None] = lambda: None,
) -> EngineLoop:
    """Wires the host side around a runner."""
    outbox = Outbox()
    door = Door()
    live = LiveRequests(scheduler, outbox, endpoint.send)
    if speculation is not None:
        live.ended = speculation.release
    return EngineLoop(
        endpoint=endpoint,
        scheduler=scheduler,
        runner=runner,
        live=live,
        intake=Intake(served, scheduler, live, outbox, endpoint.send, door),
        outbox=outbox,
        door=door,
        context_limit=served.context_limit,
        overlap_depth=overlap_depth,
        speculation=speculation,
        fallbacks=fallbacks,
        counters=counters,
        affordable_tokens=affordable_tokens,
    )


def _open_constraints(
    loop: EngineLoop,
    config: EngineConfig,
    vocabulary: Sequence[bytes],
    width: int,
    eos_ids: list[int],
) -> None:
    grammars = build_grammars(config, vocabulary, width=width, end_ids=eos_ids)
    if grammars is not None:
        loop.intake.constraints = ConstraintDesk(grammars, limit=config.queue_limit)
        loop.owners.register("grammars", grammars, release=grammars.close)


def _warm_up(loop: EngineLoop) -> None:
    """Runs one small request through the real loop, so that the first caller's is not first."""
    if loop.speculation is not None:
        loop.speculation.drafter.warmup()
    sampling = Sampling(temperature=1.0, top_k=8, max_tokens=2, ignore_eos=True)
    loop.intake.submit(Submit("warm-up", [0] * WARM_UP_TOKENS, sampling))
    while loop.busy:
        loop.step()
    loop.outbox.flush()
