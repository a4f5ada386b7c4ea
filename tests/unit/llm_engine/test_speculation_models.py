"""Small models of every family, fp32: drafting on equals drafting off, bit for bit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from antiphon_llm.engine import host_boot
from antiphon_llm.engine.boot import BootPhases, boot
from antiphon_llm.engine.loop import EngineLoop
from antiphon_llm.messages import EngineConfig, Finish, Sampling, Submit
from antiphon_llm.speculation.build import Drafting
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from .drafters import Adversary, Coin, Oracle

REQUESTS, VOCABULARY = 24, 96
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 128, "eos_token_id": 95, "initializer_range": 0.3,
}  # fmt: skip
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, sliding_window=24)),
}
SHARED = [7 * n % 90 for n in range(24)]


@dataclass
class Outcome:
    """What came of each request, and the loop that served them."""

    loop: EngineLoop
    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[float]] = field(default_factory=dict)
    ends: dict[str, Finish] = field(default_factory=dict)


def submit(name: str) -> Submit:
    chance = random.Random(name)
    piece = [chance.randrange(90) for _ in range(chance.randrange(2, 9))]
    prompt = piece * chance.randrange(1, 4)
    if chance.random() < 0.4:
        prompt = SHARED[: chance.randrange(6, 24)] + prompt
    sampling: dict[str, Any] = {"max_tokens": chance.choice((1, 3, 12, 40)), "logprobs": 1}
    if chance.random() < 0.5:
        sampling |= {"temperature": 0.9, "seed": chance.randrange(1 << 40), "top_p": 0.9}
    else:
        sampling["temperature"] = 0.0
    if chance.random() < 0.3:
        sampling |= {"repetition_penalty": 1.2, "presence_penalty": 0.3}
    if chance.random() < 0.3:
        sampling["stop_token_ids"] = [chance.randrange(VOCABULARY) for _ in range(3)]
    if chance.random() < 0.3:
        sampling |= {"allowed_token_ids": [chance.randrange(90) for _ in range(4)]}
    interactive = chance.random() < 0.6
    return Submit(name, prompt, Sampling(**sampling), interactive=interactive)


def serve(checkpoint: Path, endpoint: Any, **fields: Any) -> Outcome:
    config = EngineConfig(
        model_path=str(checkpoint), threads=1, entry_tokens=4, context_limit=96,
        prefill_chunk=16, queue_limit=100, products="float32",
        **{"kv_entries": 40, "max_rows": 8, "step_tokens": 96, "draft_adaptive": False, **fields},
    )  # fmt: skip
    outcome = Outcome(boot(config, endpoint, BootPhases(endpoint)))
    loop = outcome.loop
    endpoint.inbox.extend(submit(f"r{number}") for number in range(REQUESTS))
    loop.take_messages()
    while loop.busy:
        loop.step()
        outputs = loop.outbox.flush()
        if outputs is None:
            continue
        for name, token, logprob in zip(
            outputs.request_ids, outputs.token_ids, outputs.logprobs, strict=True
        ):
            outcome.tokens.setdefault(name, []).append(token)
            outcome.logprobs.setdefault(name, []).append(logprob)
        outcome.ends |= {finish.request_id: finish for finish in outputs.finished}
    loop.scheduler.check_integrity()
    assert len(outcome.ends) == REQUESTS
    return outcome


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(6)
    path = tmp_path_factory.mktemp(request.param)
    FAMILIES[request.param]().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Outcome:
    from .conftest import RecordingEndpoint

    return serve(checkpoint, RecordingEndpoint(), prefix_cache=False, kv_entries=200)


DRAFTERS = {"oracle": Oracle, "adversary": Adversary, "coin": Coin}
CASES = [
    *(("coin", depth, rows) for depth in (1, 2, 4, 7) for rows in (1, 3, 8)),
    ("oracle", 1, 8), ("oracle", 4, 3), ("oracle", 7, 1),
    ("adversary", 2, 8), ("adversary", 7, 3),
    ("ngram", 1, 3), ("ngram", 4, 8), ("ngram", 7, 1),
]  # fmt: skip


@pytest.mark.parametrize(("drafter", "depth", "rows"), CASES)
def test_drafting_changes_no_bit(
    checkpoint: Path, plain: Outcome, endpoint_type, monkeypatch: pytest.MonkeyPatch,
    drafter: str, depth: int, rows: int,
) -> None:  # fmt: skip
    if drafter in DRAFTERS:
        scripted = DRAFTERS[drafter](plain.tokens, VOCABULARY)
        monkeypatch.setattr(host_boot, "load_drafting", lambda *_: Drafting(lambda *_: scripted))
    drafted = serve(
        checkpoint, endpoint_type(), drafter="ngram", draft_depth=depth, max_rows=rows,
        overlap_depth=depth % 2, kv_entries=28 + rows, prefix_cache=rows != 3,
        parked_bytes=1 << 17,
    )  # fmt: skip
    assert drafted.tokens == plain.tokens
    assert drafted.logprobs == plain.logprobs
    for name, finish in drafted.ends.items():
        assert finish.reason == plain.ends[name].reason
    accepted = sum(finish.accepted_drafts for finish in drafted.ends.values())
    telemetry = drafted.loop.speculation.telemetry
    assert telemetry.proposed > 10
    assert accepted == telemetry.accepted
    assert accepted > 0 or drafter == "adversary"
