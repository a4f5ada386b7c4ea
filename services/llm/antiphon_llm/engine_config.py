"""What an engine process is booted with. Imports nothing of either side."""

from __future__ import annotations

import msgspec


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that the engine process needs to boot; resolved by the front."""

    model_path: str
    """A .gguf file or a directory with config.json and safetensors."""
    device: str = "cpu"
    dtype: str = "auto"
    """auto, float32, bfloat16 or float16: the activations' dtype; auto is float32 on CPU."""
    max_rows: int = 8
    step_tokens: int = 512
    prefill_chunk: int = 256
    entry_tokens: int = 16
    context_limit: int = 0
    """0 takes the model's own limit, narrowed to what the KV pool holds."""
    kv_entries: int = 0
    """0 sizes the pool from free memory."""
    memory_share: float = 0.9
    queue_limit: int = 64
    threads: int = 0
    """Compute threads on CPU; 0 takes the cores that the process may run on."""
    overlap_depth: int = 0
    """Steps launched ahead of the one whose tokens the host has read: 0 or 1."""
    upload_mode: str = "auto"
    """packed, direct or auto: how step data reaches a GPU."""
    graphs: str = "auto"
    """on, off or auto (on where the device has graphs)."""
    graph_rows_max: int = 0
    """Largest captured row count; 0 takes max_rows."""
    products: str = "auto"
    """Arithmetic of quantised matrix products on CPU: float32, int16 (activations rounded to 16
    bits per block of 32) or auto (int16 where the processor has the instructions)."""
    prefix_cache: bool = True
    batch_rows_max: int = 0
    """Rows that batch requests may hold together; 0 is max_rows."""
    tenant_weights: dict[str, float] = {}
    """Share of a tenant's admissions within its class; 1 where not named."""
    tenant_rows_max: int = 0
    """Rows that one tenant may hold; 0 is max_rows."""
    reserved_bytes: int = 0
    """Device memory left to others, the speech service for example."""
    parked_bytes: int = 0
    """Host memory for the keys and values of parked batch requests; 0 parks nothing."""
    batch_tokens_max: int = 0
    """Tokens of a step of batch requests, which an interactive arrival waits out; 0 is
    prefill_chunk."""
    drafter: str = ""
    """ngram, model, mtp or eagle3; empty drafts nothing."""
    draft_depth: int = 0
    """Largest number of draft tokens of a row and step; 0 drafts nothing."""
    draft_model_path: str = ""
    """Checkpoint of the draft model or head, where the drafter has one of its own."""
    draft_accept: str = "match"
    """match or residual."""
    draft_failure_limit: int = 5
    """Consecutive failures of the drafter that end the process; -1 never does."""
    grammar_threads: int = 2
    """Constraints that are compiled at a time, and threads of each."""
    grammar_cache_bytes: int = 256 << 20
    grammar_timeout_s: float = 10.0
    grammar_whitespace: int = 16
    """Most whitespace at each place of constrained JSON that may have some; 0 allows none. An
    empty array can have two places in a row."""
    draft_adaptive: bool = True
    """Whether a step drafts fewer than ``draft_depth`` where that is faster."""
    draft_valve: str = "auto"
    """Which loads draft: off (all), on:B (up to B decode rows) or auto (measured)."""
    adapters_dir: str = ""
    """Directory that adapters are loaded from; empty serves none."""
    adapter_slots: int = 8
    """Adapters that may be loaded at a time."""
    adapter_rank_max: int = 64
    adapter_bytes: int = 256 << 20
    """Of all loaded adapters in fp32."""
