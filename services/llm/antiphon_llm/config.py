"""Settings of the llm service: what the model is, how the engine runs, where it listens."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from antiphon_core.config import Settings, setting
from pydantic import model_validator

from antiphon_llm.front.parsing.registry import CALL_FORMATS, REASONING_FORMATS
from antiphon_llm.messages import EngineConfig

DEFAULT_MODEL = "smollm2-135m-instruct"


class LlmSettings(Settings):
    """The section ``[llm]``. 0 means "by device": see ``resolved``."""

    model: str = setting(
        DEFAULT_MODEL,
        doc="smollm2-135m-instruct, gemma-3-270m, a .gguf file, a checkpoint directory or a hub id",
        min_length=1,
    )
    served_name: str = setting("", doc="name of the model for callers; empty takes the model's own")
    aliases: list[str] = setting(
        default_factory=list, doc="further names that resolve to the model"
    )
    chat_template: str = setting(
        "", doc="file with a Jinja chat template, or gemma or chatml; empty takes the model's own"
    )
    tool_parser: str = setting(
        "", doc="format of the model's tool calls; empty takes what the chat template tells"
    )
    reasoning_parser: str = setting(
        "", doc="format of its reasoning, or none; empty takes what the chat template tells"
    )
    score_template: str = setting(
        "", doc="file with a Jinja template of query and document, or qwen3-reranker; for scoring"
    )
    score_tokens: list[str] = setting(
        default_factory=list,
        doc="the model's words for no and yes: pairs are then scored by the second's probability",
    )
    bind: str = setting("127.0.0.1:8082", doc="host:port or unix:path that serves gRPC")
    cache_dir: Path = setting(
        Path("~/.cache/antiphon"), doc="directory for assembled and downloaded models"
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", doc="lowest level that is logged"
    )
    log_console: bool = setting(False, doc="log lines for people in place of JSON")
    supervised: bool = setting(False, doc="whether something starts this process again")
    otlp_endpoint: str = setting("", doc="OTLP collector, http://host:port; empty exports nothing")

    default_deadline_s: float = setting(
        600.0, doc="seconds that a request without a deadline may take", gt=0
    )
    max_output: int = setting(
        0, doc="output tokens of a request that names no bound; 0 leaves the context's", ge=0
    )
    drain_grace_s: float = setting(60.0, doc="seconds that running requests get at a stop", ge=0)
    drain_delay_s: float = setting(
        0.0, doc="seconds between not ready and refusing; 5 behind a balancer", ge=0
    )
    restart_limit: int = setting(3, doc="restarts of the engine within ten minutes", ge=0)

    device: Literal["cpu", "cuda"] = setting("cpu", doc="compute device of the engine")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", doc="dtype of activations"
    )
    threads: int = setting(0, doc="compute threads on CPU; 0 takes all allowed cores", ge=0)
    max_rows: int = setting(0, doc="sequences in one step; 0 is 64 on GPU, 8 on CPU", ge=0, le=1024)
    step_tokens: int = setting(
        0, doc="tokens of one step; 0 is 4096 on GPU, 512 on CPU", ge=0, le=1_048_576
    )
    prefill_chunk: int = setting(
        0, doc="prompt tokens of one sequence in a step; 0 is 2048 on GPU, 256 on CPU", ge=0
    )
    entry_tokens: int = setting(16, doc="tokens of one KV entry", ge=1, le=1024)
    context_limit: int = setting(0, doc="prompt plus output in tokens; 0 is the model's", ge=0)
    kv_entries: int = setting(0, doc="entries of the KV pool; 0 sizes it from memory", ge=0)
    memory_share: float = setting(0.9, doc="share of free memory that the engine may take")
    queue_limit: int = setting(0, doc="sequences that may wait; 0 is 8 times max_rows", ge=0)
    reserved_bytes: int = setting(
        0, doc="memory of the engine's device that is left to others, such as speech", ge=0
    )
    overlap_depth: int = setting(
        -1,
        doc="steps launched before the last one's tokens are read, 0 or 1; -1 is by device",
        ge=-1,
        le=1,
    )
    prefix_cache: bool = setting(True, doc="whether prompts that begin alike share their KV")
    batch_rows_max: int = setting(0, doc="rows for batch requests; 0 is max_rows", ge=0)
    batch_tokens_max: int = setting(
        0, doc="tokens of a step of batch requests; 0 is prefill_chunk", ge=0
    )
    parked_bytes: int = setting(
        0, doc="host memory for the KV of batch requests that give way; 0 computes it again", ge=0
    )
    tenant_rows_max: int = setting(0, doc="rows for one tenant; 0 is max_rows", ge=0)
    tenant_weights: dict[str, float] = setting(
        default_factory=dict, doc="share of a tenant's admissions in its class; 1 if not named"
    )
    products: Literal["auto", "float32", "int16"] = setting(
        "auto", doc="activations in products of packed weights on CPU; auto is int16 where fast"
    )
    upload_mode: Literal["auto", "packed", "direct"] = setting(
        "auto", doc="how step data reaches a GPU; on CPU there is nothing to upload"
    )
    graphs: Literal["auto", "on", "off"] = setting(
        "auto", doc="graph capture; on CPU the engine is eager by declaration"
    )
    graph_rows_max: int = setting(0, doc="largest captured row count; 0 is max_rows", ge=0)
    reasoning_sampling: dict[str, float] = setting(
        default_factory=dict,
        doc="draw settings, by name, that requests which may reason take where they name none; "
        "over the model's own",
    )
    drafter: Literal["", "ngram", "model", "mtp", "eagle3"] = setting(
        "", doc="what proposes tokens ahead of the model; empty for nothing"
    )
    draft_model: str = setting(
        "", doc="of the drafters model and eagle3: an alias, .gguf file, directory or hub id"
    )
    draft_depth: int = setting(0, doc="most draft tokens of a row and step", ge=0, le=15)
    draft_adaptive: bool = setting(
        True, doc="whether a step drafts fewer than draft_depth where that is faster"
    )
    draft_valve: str = setting(
        "auto",
        doc="loads that draft: off (all), on:B (up to B decode rows) or auto (measured)",
        pattern=r"^(off|auto|on:[1-9][0-9]{0,3})$",
    )
    draft_accept: Literal["match", "residual"] = setting(
        "match", doc="match: the text is that without drafts; residual: more drafts are kept"
    )
    draft_failure_limit: int = setting(
        5, doc="failures of the drafter in a row that end the engine; -1 never does", ge=-1
    )

    adapters_dir: str = setting(
        "", doc="directory that LoRA adapters are loaded from; empty serves none"
    )
    adapters: dict[str, str] = setting(
        default_factory=dict,
        doc="adapters that are loaded at boot for every tenant: path in adapters_dir by name",
    )
    adapter_slots: int = setting(8, doc="adapters that may be loaded at a time", ge=1, le=64)
    adapter_rank_max: int = setting(64, doc="largest rank of an adapter", ge=1, le=512)
    adapter_bytes: int = setting(
        256 << 20, doc="memory for all loaded adapters, in fp32 as the CPU holds them", ge=1
    )

    grammar_threads: int = setting(2, doc="threads that compile constraints", ge=1)
    grammar_timeout_s: float = setting(
        10.0, doc="seconds that compiling a constraint may take", gt=0, le=600
    )
    grammar_cache_bytes: int = setting(
        256 << 20, doc="memory for compiled constraints that may be asked for again", ge=0
    )
    grammar_whitespace: int = setting(
        16, doc="most white space at each place of constrained JSON that may have it; 0: none", ge=0
    )

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        """What configuration alone can refute is refused here, before any model is touched."""
        if len(self.score_tokens) not in (0, 2):
            raise ValueError(
                f"score_tokens has {len(self.score_tokens)} items, allowed are two, for no and yes"
            )
        for name, allowed in (
            ("tool_parser", sorted(CALL_FORMATS)),
            ("reasoning_parser", [*sorted(REASONING_FORMATS), "none"]),
        ):
            if getattr(self, name) not in ("", *allowed):
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, allowed are {', '.join(allowed)}"
                )
        if not 0.0 < self.memory_share <= 1.0:
            raise ValueError(f"memory_share is {self.memory_share:g}, allowed is above 0 to 1")
        if self.prefill_chunk and self.prefill_chunk > self.resolved("step_tokens"):
            raise ValueError(
                f"prefill_chunk {self.prefill_chunk} is larger than step_tokens "
                f"{self.resolved('step_tokens')}"
            )
        if self.resolved("step_tokens") < self.resolved("max_rows") + self.entry_tokens:
            raise ValueError(
                f"step_tokens {self.resolved('step_tokens')} is smaller than max_rows "
                f"{self.resolved('max_rows')} plus entry_tokens {self.entry_tokens}: a step could "
                "not hold a token of each row and a piece of a prompt"
            )
        if self.device == "cpu" and self.dtype not in ("auto", "float32"):
            raise ValueError(f"dtype {self.dtype} is not served on cpu; use auto or float32")
        for name in ("batch_rows_max", "tenant_rows_max", "graph_rows_max"):
            if getattr(self, name) > self.resolved("max_rows"):
                raise ValueError(
                    f"{name} {getattr(self, name)} is larger than max_rows "
                    f"{self.resolved('max_rows')}"
                )
        if self.batch_tokens_max > self.resolved("step_tokens"):
            raise ValueError(
                f"batch_tokens_max {self.batch_tokens_max} is larger than step_tokens "
                f"{self.resolved('step_tokens')}"
            )
        for tenant, weight in self.tenant_weights.items():
            if not 0.01 <= weight <= 100.0:
                raise ValueError(
                    f"tenant_weights of {tenant!r} is {weight:g}, allowed is 0.01 to 100"
                )
        if self.upload_mode != "auto" and self.device == "cpu":
            raise ValueError(
                f"upload_mode {self.upload_mode} has no meaning on cpu, where uploads are views; "
                "leave it at auto"
            )
        if self.device == "cpu" and (self.graphs == "on" or self.graph_rows_max):
            name = "graphs on" if self.graphs == "on" else f"graph_rows_max {self.graph_rows_max}"
            raise ValueError(
                f"{name} is not served on cpu: the engine is eager by declaration there; "
                "use graphs off"
            )
        return self

    @model_validator(mode="after")
    def _refuse_adapters_without_a_root(self) -> Self:
        if self.adapters and not self.adapters_dir:
            raise ValueError("adapters are named but adapters_dir is not set")
        if len(self.adapters) > self.adapter_slots:
            raise ValueError(
                f"adapters names {len(self.adapters)}, more than adapter_slots {self.adapter_slots}"
            )
        return self

    @model_validator(mode="after")
    def _refuse_half_a_drafter(self) -> Self:
        if bool(self.drafter) != bool(self.draft_depth):
            raise ValueError(
                f"drafter is {self.drafter!r} and draft_depth {self.draft_depth}; a drafter needs "
                "a depth of 1 or more, and a depth a drafter"
            )
        if bool(self.draft_model) != (self.drafter in ("model", "eagle3")):
            raise ValueError(
                f"drafter is {self.drafter!r} and draft_model {self.draft_model!r}; the drafters "
                "model and eagle3 need one, others have none"
            )
        if self.draft_accept == "residual" and (self.drafter == "ngram" or self.device != "cpu"):
            raise ValueError(
                f"draft_accept residual is not served by drafter {self.drafter!r} on "
                f"{self.device}; it takes a drafter that draws, on cpu; use match"
            )
        if not self.draft_failure_limit:
            raise ValueError("draft_failure_limit is 0, allowed is 1 or more, or -1 for no limit")
        if self.drafter and 1 + self.draft_depth + self.entry_tokens > self.resolved("step_tokens"):
            raise ValueError(
                f"draft_depth {self.draft_depth} leaves no room for a row with drafts beside "
                f"entry_tokens {self.entry_tokens} in step_tokens {self.resolved('step_tokens')}"
            )
        return self

    def resolved(self, name: str) -> int:
        """The governing value of a setting whose 0 means "by device"."""
        value = int(getattr(self, name))
        if value:
            return value
        if name == "queue_limit":
            return 8 * self.resolved("max_rows")
        on_gpu, on_cpu = _BY_DEVICE[name]
        default = on_gpu if self.device == "cuda" else on_cpu
        return min(default, self.resolved("step_tokens")) if name == "prefill_chunk" else default

    def _overlap_depth(self) -> int:
        if self.overlap_depth >= 0:
            return self.overlap_depth
        return _OVERLAP_ON_GPU if self.device == "cuda" else _OVERLAP_ON_CPU

    def engine_config(self, model_path: Path, draft_path: Path | None = None) -> EngineConfig:
        """What the engine process gets; ``draft_path`` is where ``draft_model`` was found."""
        return EngineConfig(
            model_path=str(model_path),
            device=self.device,
            dtype=self.dtype,
            max_rows=self.resolved("max_rows"),
            step_tokens=self.resolved("step_tokens"),
            prefill_chunk=self.resolved("prefill_chunk"),
            entry_tokens=self.entry_tokens,
            context_limit=self.context_limit,
            kv_entries=self.kv_entries,
            memory_share=self.memory_share,
            queue_limit=self.resolved("queue_limit"),
            threads=self.threads,
            overlap_depth=self._overlap_depth(),
            reserved_bytes=self.reserved_bytes,
            upload_mode=self.upload_mode,
            graphs=self.graphs,
            graph_rows_max=self.graph_rows_max,
            prefix_cache=self.prefix_cache,
            batch_rows_max=self.batch_rows_max,
            batch_tokens_max=self.batch_tokens_max,
            parked_bytes=self.parked_bytes,
            tenant_rows_max=self.tenant_rows_max,
            tenant_weights=self.tenant_weights,
            products=self.products,
            grammar_threads=self.grammar_threads,
            grammar_timeout_s=self.grammar_timeout_s,
            grammar_cache_bytes=self.grammar_cache_bytes,
            grammar_whitespace=self.grammar_whitespace,
            drafter=self.drafter,
            draft_depth=self.draft_depth,
            draft_model_path="" if draft_path is None else str(draft_path),
            draft_adaptive=self.draft_adaptive,
            draft_valve=self.draft_valve,
            draft_failure_limit=self.draft_failure_limit,
            draft_accept=self.draft_accept,
            adapters_dir=self.adapters_dir,
            adapter_slots=self.adapter_slots,
            adapter_rank_max=self.adapter_rank_max,
            adapter_bytes=self.adapter_bytes,
        )


_BY_DEVICE = {"max_rows": (64, 8), "step_tokens": (4096, 512), "prefill_chunk": (2048, 256)}
"""GPU and CPU."""
_OVERLAP_ON_GPU, _OVERLAP_ON_CPU = 1, 0
"""On CPU the loop's own work is small beside a step, and takes the kernels' cores where it
overlaps: measured on 2 cores with SmolLM2-135M, see the engine's bars."""
