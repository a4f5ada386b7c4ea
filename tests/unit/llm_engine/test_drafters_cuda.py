"""Drafters with weights of their own on a CUDA device, against the host and by construction."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from antiphon_kernels.quant_linear import PackedWeight, pack
from antiphon_llm.engine.cuda.device import Device, HostDevice, open_device
from antiphon_llm.messages import Sampling, Submit
from antiphon_llm.speculation import build
from antiphon_nn.checkpoint import Checkpoint

from bench.random_qwen3 import Qwen3Shape

from .drafting import Served, assembled

CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)
SIZE = 256
SHAPE = Qwen3Shape("target", SIZE, 384, 4, 4, 2, tied=False, head_dim=64, vocabulary=SIZE)


class MemoryCheckpoint(Checkpoint):
    """A checkpoint that never was a file."""

    def __init__(self, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        super().__init__()
        self.path = Path("memory")
        self.config = {**config, "max_position_embeddings": 512}
        self._tensors = tensors

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def _tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name].float()

    def _linear(self, name: str) -> PackedWeight:
        return pack(self._tensors[name])

    def _integers(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape)
        if len(shape) == 1
        else 0.25 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }


def block(prefix: str, *, inputs: int = SIZE, norms: bool = True) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one layer of the target's kind."""
    source = "model.layers.0."
    named = {
        prefix + name.removeprefix(source): shape
        for name, shape in SHAPE.tensors().items()
        if name.startswith(source) and (norms or ("q_norm" not in name and "k_norm" not in name))
    }
    for part in "qkv":
        name = f"{prefix}self_attn.{part}_proj.weight"
        named[name] = (named[name][0], inputs)
    return named


MTP = {
    "mtp.pre_fc_norm_embedding.weight": (SIZE,), "mtp.pre_fc_norm_hidden.weight": (SIZE,),
    "mtp.fc.weight": (SIZE, 2 * SIZE), "mtp.norm.weight": (SIZE,), **block("mtp.layers.0."),
}  # fmt: skip
EAGLE3 = {
    "fc.weight": (SIZE, 3 * SIZE), "norm.weight": (SIZE,), "lm_head.weight": (SIZE, SIZE),
    "midlayer.hidden_norm.weight": (SIZE,), **block("midlayer.", inputs=2 * SIZE, norms=False),
}  # fmt: skip


def permuting() -> dict[str, torch.Tensor]:
    """A target that maps each token to the next of a permutation, and an MTP head that does so
    to the hidden state: right at every depth, if it reads the right one."""
    tensors = random_tensors({**SHAPE.tensors(), **MTP}, seed=1)
    step = torch.eye(SIZE)[torch.randperm(SIZE, generator=torch.Generator().manual_seed(2))]
    for name, tensor in tensors.items():
        if "o_proj" in name or "down_proj" in name:
            tensor.zero_()
    tensors["model.embed_tokens.weight"] = torch.eye(SIZE)
    tensors["lm_head.weight"] = step
    tensors["mtp.fc.weight"] = torch.cat([torch.zeros(SIZE, SIZE), step], dim=1)
    return tensors


def requests(count: int, *, ignore_eos: bool = True, temperature: float = 0.0) -> list[Submit]:
    chance = random.Random(4)
    settings = Sampling(
        temperature=temperature, seed=7, max_tokens=24, ignore_eos=ignore_eos, top_k=20
    )
    prompts = [[chance.randrange(SIZE) for _ in range(3 + 9 * n)] for n in range(count)]
    return [Submit(f"{n}", prompt, settings) for n, prompt in enumerate(prompts)]


def device_named(name: str) -> Device:
    return HostDevice() if name == "host" else open_device("cuda")


def engine(device: str, tensors: dict[str, torch.Tensor], endpoint: Any, **fields: Any) -> Served:
    sizes = {"entry_tokens": 16, "kv_entries": 96, "context_limit": 256, "prefill_chunk": 48}
    checkpoint = MemoryCheckpoint(tensors, SHAPE.config())
    return assembled(checkpoint, endpoint, device_named(device), **{**sizes, **fields})


@pytest.mark.parametrize("device", ["host", CUDA])
@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_a_right_head_is_always_right(device: str, overlap_depth: int, endpoint_type: Any) -> None:
    fields = {"dtype": "bfloat16", "overlap_depth": overlap_depth}
    messages = requests(8 if device == "cuda" else 2)
    plain = engine(device, permuting(), endpoint_type(), **fields).run(messages)
    fields |= {"drafter": "mtp", "draft_depth": 3}
    drafted = engine(device, permuting(), endpoint_type(), **fields).run(messages)
    assert drafted.tokens == plain.tokens
    assert drafted.rejected == 0 and drafted.accepted > 15 * len(messages)


@pytest.mark.parametrize("device", ["host", CUDA])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_target_that_drafts_for_itself_is_nearly_always_right(
    device: str, temperature: float, endpoint_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of one row and of several round differently in bfloat16."""
    tensors = random_tensors(SHAPE.tensors(), seed=3)
    draft = MemoryCheckpoint(tensors, SHAPE.config())
    monkeypatch.setattr(build, "open_checkpoint", lambda path: draft)
    fields = {"dtype": "bfloat16", "drafter": "model", "draft_depth": 3}
    drafted = engine(device, tensors, endpoint_type(), draft_model_path="memory", **fields)
    drafted.run(requests(8, temperature=temperature))
    assert drafted.acceptance > 0.9


@pytest.mark.parametrize("device", ["host", CUDA])
@pytest.mark.parametrize("drafter", ["mtp", "eagle3"])
def test_heads_draft_as_on_the_host(
    device: str, drafter: str, endpoint_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp32, but for tokens that lie as near to each other as sums in another order."""
    head = MemoryCheckpoint(
        random_tensors(EAGLE3, seed=5),
        {**SHAPE.config(), "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1,
         "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}},
    )  # fmt: skip
    monkeypatch.setattr(build, "open_checkpoint", lambda path: head)
    tensors = random_tensors({**SHAPE.tensors(), **MTP}, seed=6)
    fields = {"dtype": "float32", "drafter": drafter, "draft_depth": 4}
    fields["draft_model_path"] = "memory" if drafter == "eagle3" else ""
    found = []
    for name in ("host", device):
        drafted = engine(name, tensors, endpoint_type(), **fields).run(requests(8))
        found.append({tuple(row.tokens): row.drafts for row in drafted.drafted})
    common = found[0].keys() & found[1].keys()
    assert len(common) > 0.9 * len(found[0]) > 50
    equal = sum(found[0][context] == found[1][context] for context in common)
    assert equal > 0.95 * len(common)
