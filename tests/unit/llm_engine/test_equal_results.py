"""A real, tiny model: neither overlap, company nor a cached prefix changes one bit of a result."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from antiphon_llm.engine.boot import BootPhases, boot
from antiphon_llm.engine.loop import EngineLoop
from antiphon_llm.messages import (
    Cancel,
    Done,
    EngineConfig,
    Finish,
    FlushCache,
    Sampling,
    Submit,
)
from transformers import LlamaConfig, LlamaForCausalLM

REQUESTS = 1000
VOCABULARY = 96
SHARED = [[7 * n % 90 + k for n in range(40)] for k in range(3)]
"""Beginnings that many prompts have in common."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        eos_token_id=95, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@dataclass
class Served:
    """An engine in this thread, and what came of each request."""

    loop: EngineLoop
    endpoint: Any
    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[float]] = field(default_factory=dict)
    ends: dict[str, Finish] = field(default_factory=dict)

    def step(self) -> None:
        self.loop.take_messages()
        if self.loop.busy:
            self.loop.step()
        outputs = self.loop.outbox.flush()
        if outputs is None:
            return
        for name, token, logprob in zip(
            outputs.request_ids, outputs.token_ids, outputs.logprobs, strict=True
        ):
            assert name not in self.ends
            self.tokens.setdefault(name, []).append(token)
            self.logprobs.setdefault(name, []).append(logprob)
        for finish in outputs.finished:
            assert finish.request_id not in self.ends
            self.ends[finish.request_id] = finish

    def run(self) -> None:
        self.step()
        while self.loop.busy:
            self.step()
        self.loop.scheduler.check_integrity()


def served(checkpoint: Path, endpoint: Any, **fields: Any) -> Served:
    values = {"threads": 1, "kv_entries": 34, "entry_tokens": 4, "context_limit": 96,
              "step_tokens": 48, "prefill_chunk": 32, "max_rows": 6, "products": "float32",
              **fields}  # fmt: skip
    config = EngineConfig(model_path=str(checkpoint), **values)
    loop = boot(config, endpoint, BootPhases(endpoint))
    return Served(loop, endpoint)


def random_submit(name: str) -> Submit:
    chance = random.Random(name)
    prompt = [chance.randrange(90) for _ in range(chance.randrange(1, 20))]
    if chance.random() < 0.5:
        prompt = SHARED[chance.randrange(3)][: chance.randrange(8, 40)] + prompt
    fields: dict[str, Any] = {"max_tokens": chance.choice((1, 2, 6, 12, 40)), "logprobs": 0}
    if chance.random() < 0.6:
        fields |= {"temperature": 1.0, "seed": chance.randrange(1 << 40), "top_p": 0.9}
    else:
        fields["temperature"] = 0.0
    if chance.random() < 0.3:
        fields |= {"repetition_penalty": 1.2, "frequency_penalty": 0.3}
    if chance.random() < 0.5:
        fields["stop_token_ids"] = [chance.randrange(VOCABULARY) for _ in range(3)]
    return Submit(name, prompt, Sampling(**fields), cache=chance.random() < 0.9)


def run_traffic(engine: Served, count: int) -> set[str]:
    """Serves requests r0, r1, ... with random timing; returns those that were cancelled."""
    chance = random.Random(engine.loop.overlap_depth)
    cancelled: set[str] = set()
    sent = 0
    while sent < count:
        if engine.loop.scheduler.refusal(True) is None and engine.loop.scheduler.waiting < 12:
            for _ in range(min(chance.randrange(4), count - sent)):
                submit = random_submit(f"r{sent}")
                # The class decides when a request runs, and so must not show in its result.
                batch = chance.random() < 0.4 and engine.loop.scheduler.refusal(False) is None
                submit.interactive = not batch
                engine.endpoint.inbox.append(submit)
                sent += 1
        if sent and chance.random() < 0.05:
            victim = f"r{chance.randrange(max(0, sent - 8), sent)}"
            cancelled.add(victim)
            engine.endpoint.inbox.append(Cancel(victim))
        engine.step()
    engine.run()
    assert len(engine.ends) == count
    return cancelled


def assert_same(one: Served, other: Served, names: Sequence[str]) -> None:
    for name in names:
        assert one.tokens[name] == other.tokens[name], name
        # nan where the caller did not ask; here everybody asked, so equality is of bits.
        assert one.logprobs[name] == other.logprobs[name], name
        assert one.ends[name].reason == other.ends[name].reason


def test_overlap_and_cache_change_nothing(checkpoint: Path, endpoint_type) -> None:
    plain = served(checkpoint, endpoint_type(), overlap_depth=0, prefix_cache=False)
    fast = served(
        checkpoint, endpoint_type(), overlap_depth=1, prefix_cache=True, parked_bytes=1 << 17
    )
    cancelled = run_traffic(plain, REQUESTS) | run_traffic(fast, REQUESTS)
    names = [f"r{n}" for n in range(REQUESTS) if f"r{n}" not in cancelled]
    assert len(names) > REQUESTS / 2
    assert_same(plain, fast, names)
    for engine in (plain, fast):
        assert engine.loop.scheduler.preemptions > 20
    assert fast.loop.scheduler.cached_tokens > 1000
    assert fast.loop.scheduler.parking.parked_total > 5
    assert any(end.cached_tokens for end in fast.ends.values())
    assert {fast.ends[name].reason for name in names} == {"stop", "length"}
    programs = fast.loop.runner._model.programs
    assert programs.replays > 100
    assert set(programs.eager) == {"recorded"}  # Decode batches never moved.


def test_alone_and_in_company(checkpoint: Path, endpoint_type) -> None:
    company = served(checkpoint, endpoint_type(), overlap_depth=1)
    cancelled = run_traffic(company, 60)
    alone = served(checkpoint, endpoint_type(), overlap_depth=0, prefix_cache=False)
    names = [f"r{n}" for n in range(60) if f"r{n}" not in cancelled]
    for name in names:
        alone.endpoint.inbox.append(random_submit(name))
        alone.run()
    assert_same(company, alone, names)


def test_a_flush_is_answered_and_forgets(checkpoint: Path, endpoint_type) -> None:
    engine = served(checkpoint, endpoint_type())
    sampling = Sampling(temperature=0.0, max_tokens=2, ignore_eos=True, logprobs=0)

    def cached(name: str, tenant: str) -> int:
        engine.endpoint.inbox.append(Submit(name, SHARED[0], sampling, tenant=tenant))
        engine.run()
        return engine.ends[name].cached_tokens

    def flush(tenant: str | None) -> int:
        engine.endpoint.inbox.append(FlushCache(f"flush {tenant}", tenant))
        engine.step()
        answer = engine.endpoint.sent[-1]
        assert answer == Done(f"flush {tenant}", entries=answer.entries)
        return answer.entries

    assert cached("cold", "blue") == 0
    assert cached("warm", "blue") == 36
    assert cached("other tenant", "red") == 0
    assert flush("red") == 10
    assert cached("still warm", "blue") == 36
    assert cached("flushed", "red") == 0
    assert flush(None) == 22, "two prompts of ten entries, and the two of the warm-up"
    assert cached("all flushed", "blue") == 0
    assert engine.tokens["warm"] == engine.tokens["cold"] == engine.tokens["all flushed"]
