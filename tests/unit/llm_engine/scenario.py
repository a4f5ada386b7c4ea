"""What happens to a simulated engine from outside, and what each request draws alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from antiphon_llm.engine.readout import PooledVector, Readout
from antiphon_llm.engine.request import Request, Timings
from antiphon_llm.messages import Sampling
from antiphon_llm.sampler.row import SamplerRow

UNIT = 4
CONTEXT = 40
MODULUS = 1_000_003
SAMPLER = SamplerRow(Sampling(), choice=0, prompt_ids=[1], end_ids=[], vocabulary=8)
TENANTS = ("", "a", "b")
ADAPTERS = ("", "x")
STEMS = tuple(tuple(random.Random(stem).choices(range(50), k=CONTEXT)) for stem in range(3))


def mix(before: int, token: int) -> int:
    """Contents of a place behind ``before``."""
    return (before * 31 + token + 1) % MODULUS


def origin(tenant: str, adapter: str) -> int:
    """What stands before the first place of a sequence."""
    return 1000 + TENANTS.index(tenant) * 10 + ADAPTERS.index(adapter)


def drawn(contents: int) -> int:
    return contents % 47


def stops(token: int) -> bool:
    return token % 12 == 5


@dataclass(frozen=True)
class Arrival:
    """A request, and what happens to it from outside."""

    at: int
    prompt: tuple[int, ...]
    max_tokens: int
    interactive: bool = True
    tenant: str = ""
    adapter: str = ""
    cached: bool = True
    pooled: bool = False
    scored: bool = False
    cancel_after: int | None = None

    def request(self, sequence: int) -> Request:
        return Request(
            f"r{sequence}", sequence, list(self.prompt), len(self.prompt), self.max_tokens,
            Timings(0.0), interactive=self.interactive, tenant=self.tenant, adapter=self.adapter,
            cache=self.cached, sampler=None if self.pooled else SAMPLER,
            pooled=PooledVector(Readout()) if self.pooled else None,
            prompt_logprobs=1 if self.scored else -1,
        )  # fmt: skip


@cache
def alone(prompt: tuple[int, ...], max_tokens: int, tenant: str, adapter: str) -> tuple[int, ...]:
    """Prompt and output of a generation that has the engine for itself."""
    contents = origin(tenant, adapter)
    for token in prompt:
        contents = mix(contents, token)
    tokens = list(prompt)
    limit = min(CONTEXT, len(prompt) + max_tokens)
    while True:
        tokens.append(drawn(contents))
        if stops(tokens[-1]) or len(tokens) >= limit:
            return tuple(tokens)
        contents = mix(contents, tokens[-1])


def accepted(contents: list[int], drafts: Sequence[int]) -> list[int]:
    """The tokens drawn at the positions of a row, up to the first that is not its draft."""
    emitted = []
    for place, before in enumerate(contents):
        emitted.append(drawn(before))
        if place < len(drafts) and emitted[-1] != drafts[place]:
            break
    return emitted


@dataclass(frozen=True)
class Scenario:
    """One engine and everything that happens to it."""

    arrivals: tuple[Arrival, ...]
    entries: int = 11
    rows: int = 4
    step_tokens: int = 16
    chunk: int = 8
    depth: int = 0
    at_once: bool = True
    """Whether a step that completes a prompt is collected before the next is planned."""
    tree: bool = True
    parking: int = 0
    """Entries that host memory can hold."""
    batch_rows_max: int = 0
    batch_tokens_max: int = 0
    tenant_rows_max: int = 0
    weights: tuple[tuple[str, float], ...] = ()
    flushes: tuple[tuple[int, str | None], ...] = ()
    failures: frozenset[int] = frozenset()
    """Steps that compute nothing and fail when they are collected."""
    drafts: int = 0
    """Most drafts of a row."""
    draft_seed: int = 0


def random_scenario(seed: int) -> Scenario:
    chance = random.Random(seed)
    rows = chance.randint(1, 4)
    horizon = chance.choice((0, 8, 30))
    stems = STEMS[: chance.randint(1, 3)]
    tenants = TENANTS[: chance.randint(1, 3)]

    def arrival() -> Arrival:
        length = chance.randint(1, chance.choice((6, 16, 30)))
        stem = chance.choice(stems)[: length - chance.choice((0, 1, 3, length))]
        prompt = stem + tuple(chance.choices(range(50), k=length - len(stem)))
        return Arrival(
            at=chance.randint(0, horizon),
            prompt=prompt,
            max_tokens=chance.randint(1, 10),
            interactive=chance.random() < 0.6,
            tenant=chance.choice(tenants),
            adapter=chance.choice(ADAPTERS) if chance.random() < 0.2 else "",
            cached=chance.random() < 0.85,
            pooled=chance.random() < 0.05,
            scored=chance.random() < 0.05,
            cancel_after=chance.randint(0, 14) if chance.random() < 0.2 else None,
        )

    weights = (("a", 3.0), ("b", 0.5)) if chance.random() < 0.3 else ()
    return Scenario(
        arrivals=tuple(arrival() for _ in range(chance.randint(1, 12))),
        entries=chance.choice((11, 11, 13, 17, 30)),
        rows=rows,
        step_tokens=chance.choice((rows + UNIT, 12, 16, 32)),
        chunk=chance.choice((3, 4, 8, 16)),
        depth=chance.randint(0, 1),
        at_once=chance.random() < 0.7,
        tree=chance.random() < 0.9,
        parking=chance.choice((0, 0, 3, 12)),
        batch_rows_max=chance.choice((0, 0, 1)),
        batch_tokens_max=chance.choice((0, 5, 16)),
        tenant_rows_max=chance.choice((0, 0, 1)),
        weights=weights,
        flushes=tuple((chance.randint(3, 20), chance.choice((None, *TENANTS)))
                      for _ in range(chance.choice((0, 0, 0, 1)))),
        failures=frozenset(chance.sample(range(1, 25), chance.choice((0, 0, 0, 4)))),
        drafts=chance.choice((0, 1, 2, 4, 7)),
        draft_seed=seed,
    )  # fmt: skip
