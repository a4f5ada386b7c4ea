"""An engine with adapters in the test's own thread, on either kind of runner."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from antiphon_llm.adapter_messages import LoadAdapter, UnloadAdapter
from antiphon_llm.engine.adapters.build import open_adapters
from antiphon_llm.engine.boot import BootPhases, _assemble, boot, check_config
from antiphon_llm.engine.cuda import boot as cuda_boot
from antiphon_llm.engine.cuda.device import Device
from antiphon_llm.engine.loop import EngineLoop
from antiphon_llm.messages import Done, EngineConfig, Finish, Sampling, StepOutputs, Submit
from antiphon_nn.checkpoint import open_checkpoint
from support.adapters import save_adapter, shapes_of
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY, LAYERS = 96, 3
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 128, "eos_token_id": 95,
    "initializer_range": 0.2,
}  # fmt: skip
FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
}
KINDS: dict[str, dict[str, Any]] = {
    "all": {"rank": 8, "seed": 1, "lora_alpha": 16},
    "attention": {"rank": 3, "seed": 2, "modules": ("q_proj", "v_proj"), "lora_alpha": 6},
    "rescaled": {"rank": 16, "seed": 3, "use_rslora": True, "lora_alpha": 8},
    "half": {"rank": 4, "seed": 4, "dtype": torch.bfloat16, "modules": ("down_proj", "o_proj")},
}
VALUES = {
    "threads": 1, "kv_entries": 96, "entry_tokens": 4, "context_limit": 96, "max_rows": 6,
    "step_tokens": 64, "prefill_chunk": 16, "products": "float32", "queue_limit": 512,
}  # fmt: skip


def models(root: Path, family: str) -> tuple[Path, Path]:
    """A base checkpoint, and a directory with an adapter of each kind."""
    config_type, model_type = FAMILIES[family]
    torch.manual_seed(4)
    config = config_type(**SHAPE)
    model_type(config).save_pretrained(root / "base")
    for name, options in KINDS.items():
        save_adapter(root / "adapters" / name, shapes_of(config), LAYERS, **options)
    return root / "base", root / "adapters"


@dataclass
class Served:
    """An engine in this thread, what came of each request, and the answers to messages."""

    loop: EngineLoop
    endpoint: Any
    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[float]] = field(default_factory=dict)
    prompt: dict[str, list[Any]] = field(default_factory=dict)
    ends: dict[str, Finish] = field(default_factory=dict)
    answers: dict[str, Done] = field(default_factory=dict)

    def step(self) -> None:
        self.loop.take_messages()
        if self.loop.busy:
            self.loop.step()
        for message in (self.loop.outbox.flush(), *self.endpoint.drain_sent()):
            if isinstance(message, Done):
                self.answers[message.request_id] = message
            elif isinstance(message, StepOutputs):
                self._take(message)

    def _take(self, outputs: StepOutputs) -> None:
        for place, (name, token) in enumerate(
            zip(outputs.request_ids, outputs.token_ids, strict=True)
        ):
            assert name not in self.ends
            self.tokens.setdefault(name, []).append(token)
            if outputs.logprobs:
                self.logprobs.setdefault(name, []).append(outputs.logprobs[place])
        self.prompt.update(outputs.prompt_logprobs)
        for finish in outputs.finished:
            assert finish.request_id not in self.ends
            self.ends[finish.request_id] = finish

    def run(self) -> None:
        self.step()
        while self.loop.busy:
            self.step()
        self.loop.scheduler.check_integrity()

    def ask(self, message: LoadAdapter | UnloadAdapter) -> Done:
        """Sends a message and steps until it is answered."""
        self.endpoint.inbox.append(message)
        while message.request_id not in self.answers:
            self.step()
        return self.answers.pop(message.request_id)

    def load(self, name: str, path: str = "", **fields: Any) -> Done:
        return self.ask(LoadAdapter(f"load {name}", name, path or name, **fields))

    def unload(self, name: str, **fields: Any) -> Done:
        return self.ask(UnloadAdapter(f"unload {name}", name, **fields))

    def submit(self, request_id: str, prompt: list[int], adapter: str = "", **fields: Any) -> None:
        own = {key: fields.pop(key) for key in ("tenant", "cache") if key in fields}
        sampling = Sampling(
            **{"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, "logprobs": 0, **fields}
        )
        self.endpoint.inbox.append(Submit(request_id, prompt, sampling, adapter=adapter, **own))


def served(base: Path, adapters: Path | None, endpoint_type: Any, **fields: Any) -> Served:
    values = {**VALUES, "adapters_dir": "" if adapters is None else str(adapters), **fields}
    endpoint = endpoint_type()
    loop = boot(EngineConfig(model_path=str(base), **values), endpoint, BootPhases(endpoint))
    loop.outbox.flush()
    endpoint.drain_sent()
    return Served(loop, endpoint)


def served_on(
    device: Device, base: Path, adapters: Path | None, endpoint_type: Any, **fields: Any
) -> Served:
    """As ``served``, through the path of accelerators."""
    values = {**VALUES, "adapters_dir": "" if adapters is None else str(adapters), **fields}
    values = {"dtype": "float32", **values}
    config = EngineConfig(model_path=str(base), **values)
    limits = check_config(EngineConfig(model_path=str(base), **{**values, "dtype": "auto"}))
    endpoint = endpoint_type()
    built = cuda_boot.build(
        config, open_checkpoint(base), lambda name: nullcontext(), device=device
    )
    loop = _assemble(config, limits, endpoint, built, [95], {}, ())
    open_adapters(loop, config, built.model)
    return Served(loop, endpoint)
