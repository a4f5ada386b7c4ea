"""What rounded activations cost: the divergence of next-token distributions over a text."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import antiphon_kernels
import torch
from antiphon_llm.engine.runner import LayerCache
from antiphon_llm.front.tokenizer import from_gguf
from antiphon_llm.models.decoder import Decoder
from antiphon_nn.gguf_file import GgufFile

TEXT = Path(__file__).with_name("english.txt")
KL_TOKENS = 768
_CHUNK = 256
_HEAD_ROWS = 32


def english(path: Path) -> list[int]:
    """The ids of the English text by a GGUF file's tokenizer; more than KL_TOKENS."""
    return from_gguf(GgufFile(path).metadata).encode(TEXT.read_text(encoding="utf-8"))


@torch.inference_mode()
def hidden_states(model: Decoder, ids: list[int]) -> torch.Tensor:
    """Final hidden states (N, H) of a text, fed in chunks."""
    entry = 16
    pages = -(-len(ids) // entry)
    views = [
        LayerCache(*(torch.zeros(pages * entry, layer.kv_heads, layer.head_dim) for _ in "kv"))
        for layer in model.spec.layers
    ]
    parts = []
    for begin in range(0, len(ids), _CHUNK):
        end = min(begin + _CHUNK, len(ids))
        meta: Any = SimpleNamespace(
            query_start=torch.tensor([0, end - begin], dtype=torch.int32),
            context_len=torch.tensor([end], dtype=torch.int32),
            block_table=torch.arange(pages, dtype=torch.int32)[None],
            write_slot=torch.arange(begin, end),
            block_tokens=entry,
            max_query=end - begin,
            max_context=end,
        )
        tokens = torch.tensor(ids[begin:end], dtype=torch.int32)
        positions = torch.arange(begin, end, dtype=torch.int32)
        parts.append(model.forward(tokens, positions, meta, views).clone())
    return torch.cat(parts)


@torch.inference_mode()
def divergence(model: Decoder, ids: list[int]) -> float:
    """Mean KL(float32 || int16), in nats, of the next-token distributions of a text."""
    kinds = ("float32", "int16")
    before = antiphon_kernels.products()
    hidden = []
    for products in kinds:
        antiphon_kernels.set_products(products)
        hidden.append(hidden_states(model, ids).split(_HEAD_ROWS))
    total = 0.0
    for rows in zip(*hidden, strict=True):
        logs = []
        for products, part in zip(kinds, rows, strict=True):
            antiphon_kernels.set_products(products)
            logits = model.head(part, torch.empty(len(part), model.vocab_size))
            logs.append(logits.log_softmax(-1))
        total += float((logs[0].exp() * (logs[0] - logs[1])).sum(dtype=torch.float64))
    antiphon_kernels.set_products(before)
    return total / len(ids)
