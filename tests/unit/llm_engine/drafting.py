"""What the drafter tests share: small checkpoints in the public layouts, plain PyTorch references
of the heads, and an engine that tells what was drafted from what."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from antiphon_llm.engine.boot import BootPhases, _assemble, boot, check_config
from antiphon_llm.engine.cuda import boot as cuda_boot
from antiphon_llm.engine.cuda.device import Device, HostDevice
from antiphon_llm.engine.loop import EngineLoop
from antiphon_llm.messages import EngineConfig, Finish, Sampling, Submit
from antiphon_llm.speculation.drafter import Proposal
from antiphon_nn.checkpoint import Checkpoint, open_checkpoint
from torch import nn
from torch.nn import functional

VOCABULARY = 96
END = 95
CONTEXT = 128
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": CONTEXT, "eos_token_id": END, "initializer_range": 0.3,
    "rms_norm_eps": 1e-6, "attn_implementation": "eager",
}  # fmt: skip
EPS = 1e-6


def target(path: Path, *, layers: int = 4, family: str = "qwen3", seed: int = 4) -> nn.Module:
    """Saves a random target; its norms are no ones."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    shape = {**SHAPE, "num_hidden_layers": layers}
    model = (
        Qwen3ForCausalLM(Qwen3Config(**shape))
        if family == "qwen3"
        else LlamaForCausalLM(LlamaConfig(**shape))
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.float().eval().save_pretrained(path)
    return model


def near(path: Path, model: nn.Module, *, noise: float, seed: int = 21) -> nn.Module:
    """Saves a copy of a target that says the same often, not always."""
    torch.manual_seed(seed)
    copy = deepcopy(model)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(noise * parameter.std() * torch.randn_like(parameter))
    copy.save_pretrained(path)
    return copy


@contextmanager
def one_thread() -> Iterator[None]:
    """Products this small cost less than waking a second thread for them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.2 * torch.randn(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight


class Attention(nn.Module):
    """Grouped queries over a sequence (N, inputs), rotated at its positions, causal."""

    def __init__(self, inputs: int, *, norms: bool) -> None:
        super().__init__()
        hidden, heads, self.kv, self.dim = SHAPE["hidden_size"], 4, 2, 16
        self.heads = heads
        self.q_proj = nn.Linear(inputs, heads * self.dim, bias=False)
        self.k_proj = nn.Linear(inputs, self.kv * self.dim, bias=False)
        self.v_proj = nn.Linear(inputs, self.kv * self.dim, bias=False)
        self.o_proj = nn.Linear(heads * self.dim, hidden, bias=False)
        self.q_norm = Norm(self.dim) if norms else None
        self.k_norm = Norm(self.dim) if norms else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = len(x)
        q = self.q_proj(x).view(count, self.heads, self.dim)
        k = self.k_proj(x).view(count, self.kv, self.dim)
        v = self.v_proj(x).view(count, self.kv, self.dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = _rotated(q), _rotated(k)
        k, v = (part.repeat_interleave(self.heads // self.kv, dim=1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / self.dim**0.5
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
        return self.o_proj(mixed.reshape(count, -1))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        hidden, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, inputs: int, *, norms: bool) -> None:
        super().__init__()
        hidden = SHAPE["hidden_size"]
        self.self_attn = Attention(inputs, norms=norms)
        self.mlp = Mlp()
        self.input_layernorm = Norm(hidden)
        self.post_attention_layernorm = Norm(hidden)


class MtpReference(nn.Module):
    """x = fc [norm(E); norm(h)], one layer, norm, the target's head."""

    def __init__(self, embedding: torch.Tensor, head: torch.Tensor, *, norms: bool) -> None:
        super().__init__()
        hidden = SHAPE["hidden_size"]
        self.embedding, self.head = embedding, head
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = Norm(hidden), Norm(hidden)
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.layers = nn.ModuleList([Layer(hidden, norms=norms)])
        self.norm = Norm(hidden)

    def forward(self, ids: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (N, V) and the hidden states to chain, of tokens (N) and states (N, H)."""
        e = functional.embedding(ids, self.embedding)
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(e), self.pre_fc_norm_hidden(h)], dim=1))
        layer = self.layers[0]
        x = x + layer.self_attn(layer.input_layernorm(x))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        x = self.norm(x)
        return x @ self.head.T, x


class Eagle3Reference(nn.Module):
    """Attention over [norm(E); norm(f)], f the residual stream, a head of some ids."""

    def __init__(self, embedding: torch.Tensor, ids: torch.Tensor) -> None:
        super().__init__()
        hidden = SHAPE["hidden_size"]
        self.embedding, self.ids = embedding, ids
        self.fc = nn.Linear(3 * hidden, hidden, bias=False)
        self.midlayer = Layer(2 * hidden, norms=False)
        self.midlayer.hidden_norm = Norm(hidden)
        self.norm = Norm(hidden)
        self.lm_head = nn.Linear(hidden, len(ids), bias=False)

    def forward(self, ids: torch.Tensor, f: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        layer = self.midlayer
        e = layer.input_layernorm(functional.embedding(ids, self.embedding))
        x = f + layer.self_attn(torch.cat([e, layer.hidden_norm(f)], dim=1))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits = torch.full((len(ids), VOCABULARY), -torch.inf)
        logits[:, self.ids] = self.lm_head(self.norm(x))
        return logits, x


def chain(reference: Any, tokens: Sequence[int], states: torch.Tensor, depth: int) -> list[int]:
    """Greedy drafts behind tokens, of states (N - 1 or more, H) of all but the last of them."""
    ids, h = list(tokens[1:]), states[: len(tokens) - 1]
    drafts = []
    with torch.no_grad():
        for _ in range(depth):
            logits, out = reference(torch.tensor(ids), h)
            drafts.append(int(logits[-1].argmax()))
            ids.append(drafts[-1])
            h = torch.cat([h, out[-1:]])
    return drafts


def _rotated(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.arange(len(x))[:, None] * frequencies
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def scale(module: nn.Module, seed: int) -> None:
    """Random matrices whose greedy choices differ from one context to the next."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.25)


def add_tensors(path: Path, tensors: dict[str, torch.Tensor], **config: Any) -> None:
    """Puts further tensors and config keys into a saved checkpoint."""
    from safetensors.torch import load_file, save_file

    file = path / "model.safetensors"
    stored = {name: tensor.clone() for name, tensor in load_file(file).items()}
    added = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    save_file({**stored, **added}, file, metadata={"format": "pt"})
    settings = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**settings, **config}))


def qwen_names(mtp: MtpReference) -> dict[str, torch.Tensor]:
    """The head as a Qwen3-Next checkpoint names it."""
    return {f"mtp.{name}": tensor for name, tensor in mtp.state_dict().items()}


def deepseek_names(mtp: MtpReference, layers: int) -> dict[str, torch.Tensor]:
    """The head as a DeepSeek-V3 checkpoint names it, with copies of embedding and head."""
    names = {
        "pre_fc_norm_embedding.": "enorm.", "pre_fc_norm_hidden.": "hnorm.", "fc.": "eh_proj.",
        "norm.": "shared_head.norm.", "layers.0.": "",
    }  # fmt: skip
    tensors = {"embed_tokens.weight": mtp.embedding, "shared_head.head.weight": mtp.head}
    for name, tensor in mtp.state_dict().items():
        old = next(key for key in names if name.startswith(key))
        tensors[names[old] + name.removeprefix(old)] = tensor
    return {f"model.layers.{layers}.{name}": tensor for name, tensor in tensors.items()}


def save_eagle3(path: Path, reference: Eagle3Reference, **config: Any) -> None:
    """The head as a draft checkpoint of its own."""
    from safetensors.torch import save_file

    path.mkdir()
    ids = reference.ids
    tensors = {name: tensor.contiguous() for name, tensor in reference.state_dict().items()}
    tensors["d2t"] = ids - torch.arange(len(ids))
    tensors["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill_(0, ids, True)
    save_file(tensors, path / "model.safetensors")
    settings = {
        **{key: value for key, value in SHAPE.items() if key != "attn_implementation"},
        "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1,
        "draft_vocab_size": len(ids), **config,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(settings))


@dataclass
class Recorded:
    """One row of one call of the drafter."""

    request_id: str
    tokens: list[int]
    drafts: list[int]
    depth: int


@dataclass
class Served:
    """An engine in this thread, with what it drafted and what came of each request."""

    loop: EngineLoop
    tokens: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, Finish] = field(default_factory=dict)
    drafted: list[Recorded] = field(default_factory=list)
    steps: int = 0

    def submit(self, submits: Sequence[Submit]) -> None:
        for message in submits:
            self.loop.intake.submit(message)

    def step(self) -> None:
        self.loop.step()
        self.steps += 1
        outputs = self.loop.outbox.flush()
        if outputs is None:
            return
        for name, token in zip(outputs.request_ids, outputs.token_ids, strict=True):
            self.tokens.setdefault(name, []).append(token)
        for finish in outputs.finished:
            self.ends[finish.request_id] = finish

    def run(self, submits: Sequence[Submit] = ()) -> Served:
        self.submit(submits)
        with one_thread():
            while self.loop.busy:
                self.step()
                self.loop.scheduler.check_integrity()
        return self

    @property
    def accepted(self) -> int:
        return sum(finish.accepted_drafts for finish in self.ends.values())

    @property
    def rejected(self) -> int:
        return sum(finish.rejected_drafts for finish in self.ends.values())

    @property
    def acceptance(self) -> float:
        return self.accepted / max(1, self.accepted + self.rejected)


def served(path: Path, endpoint: Any, **fields: Any) -> Served:
    """An engine over a checkpoint; with a drafter, its calls are recorded."""
    values = {
        "threads": 1, "kv_entries": 96, "entry_tokens": 4, "context_limit": 96,
        "step_tokens": 64, "prefill_chunk": 16, "max_rows": 6, "products": "float32",
        "queue_limit": 512,
        "draft_adaptive": False, "draft_valve": "off", **fields,
    }  # fmt: skip
    loop = boot(EngineConfig(model_path=str(path), **values), endpoint, BootPhases(endpoint))
    loop.outbox.flush()
    result = Served(loop)
    if loop.speculation is not None:
        _record(loop.speculation.drafter, result.drafted)
    return result


def served_on_device(path: Path, endpoint: Any, **fields: Any) -> Served:
    """As ``served``, through the path of accelerators on this machine's processor."""
    return assembled(open_checkpoint(path), endpoint, HostDevice(), **fields)


def assembled(checkpoint: Checkpoint, endpoint: Any, device: Device, **fields: Any) -> Served:
    """An engine over any checkpoint on any device."""
    values = {
        "threads": 1, "kv_entries": 96, "entry_tokens": 4, "context_limit": 96,
        "step_tokens": 64, "prefill_chunk": 16, "max_rows": 6, "products": "float32",
        "queue_limit": 512,
        "dtype": "float32", "draft_adaptive": False, "draft_valve": "off", **fields,
    }  # fmt: skip
    path = str(checkpoint.path)
    limits = check_config(EngineConfig(model_path=path, **{**values, "dtype": "auto"}))
    config = EngineConfig(model_path=path, **values)
    with one_thread():
        built = cuda_boot.build(config, checkpoint, lambda name: nullcontext(), device=device)
    loop = _assemble(config, limits, endpoint, built, [END], {}, ())
    result = Served(loop)
    if loop.speculation is not None:
        _record(loop.speculation.drafter, result.drafted)
    return result


def _record(drafter: Any, drafted: list[Recorded]) -> None:
    plain = drafter.draft

    def draft(requests: Sequence[Any], depth: int) -> Proposal:
        proposal = plain(requests, depth)
        for request, drafts in zip(requests, proposal.tokens, strict=True):
            drafted.append(Recorded(request.request_id, list(request.tokens), list(drafts), depth))
        return proposal

    drafter.draft = draft


def submits(count: int, *, sampled: float = 0.5, seed: int = 3, **fields: Any) -> list[Submit]:
    """Random requests, a share of them sampled with filters and penalties."""
    chance = random.Random(seed)
    result = []
    for index in range(count):
        prompt = [chance.randrange(90) for _ in range(chance.randrange(1, 40))]
        settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 20}
        if chance.random() < sampled:
            settings |= {"temperature": 0.9, "seed": chance.randrange(1 << 40)}
            settings |= chance.choice([{}, {"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.05}])
        if chance.random() < 0.3:
            settings |= {"repetition_penalty": 1.2, "frequency_penalty": 0.2}
        settings |= fields
        result.append(Submit(f"{index}", prompt, Sampling(**settings)))
    return result
