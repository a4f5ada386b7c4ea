"""Compiles: one for each source, bounded in number, bytes and time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from antiphon_llm.messages import Constraint
from antiphon_llm.structured.backend import GrammarError
from antiphon_llm.structured.compile_pool import (
    Compilation,
    CompileOverload,
    CompilePool,
    GrammarCache,
)

WAIT = 30.0


@dataclass
class Sized:
    nbytes: int

    def matcher(self, end_ids: list[int]) -> None: ...


@dataclass
class GatedBackend:
    """Compiles when it is let; a source that begins with "bad" fails."""

    identity: str = "gated"
    gate: threading.Event = field(default_factory=threading.Event)
    compiled: list[str] = field(default_factory=list)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def compile(self, constraint: Constraint) -> Sized:
        self.compiled.append(constraint.source)
        self.entered.release()
        assert self.gate.wait(WAIT)
        if constraint.source.startswith("bad"):
            raise GrammarError("it is bad")
        if constraint.source.startswith("defect"):
            raise KeyError("defect")
        return Sized(10)


@pytest.fixture
def backend() -> GatedBackend:
    return GatedBackend()


@pytest.fixture
def pool(backend: GatedBackend) -> Iterator[CompilePool]:
    made = CompilePool(backend, threads=1, cache_bytes=25, timeout_s=10.0)
    yield made
    backend.gate.set()
    made.close()


def regex(source: str) -> Constraint:
    return Constraint(kind="regex", source=source)


def settled(pool: CompilePool, compilation: Compilation) -> Compilation:
    """Waits for a compile that was let."""
    pause = threading.Event()
    while not compilation.done:
        assert not pause.wait(0.001)
    return compilation


def test_one_compile_serves_all_who_come_meanwhile(
    pool: CompilePool, backend: GatedBackend
) -> None:
    first = pool.submit(regex("a"))
    assert pool.submit(regex("a")) is first
    assert pool.submit(regex("b")) is not first
    assert pool.grammar(first, waited=1.0) is None
    backend.gate.set()
    settled(pool, first)
    assert pool.grammar(first, waited=99.0) is not None
    again = pool.submit(regex("a"))
    assert again.done and again is not first
    assert backend.compiled.count("a") == 1
    counts = pool.counters()
    assert (counts["grammar: joined"], counts["grammar: hit"]) == (1, 1)


def test_kind_and_vocabulary_are_part_of_the_key(backend: GatedBackend) -> None:
    other = GatedBackend(identity="another vocabulary")
    keys = set()
    for used in (backend, other):
        pool = CompilePool(used, threads=1, cache_bytes=1, timeout_s=1.0)
        keys |= {pool.submit(Constraint(kind=kind, source="a")).key for kind in ("regex", "ebnf")}
        used.gate.set()
        pool.close()
    assert len(keys) == 4


def test_a_failure_is_told_to_all_and_remembered(pool: CompilePool, backend: GatedBackend) -> None:
    backend.gate.set()
    for source in ("bad", "defect"):
        first = settled(pool, pool.submit(regex(source)))
        for compilation in (first, pool.submit(regex(source))):
            with pytest.raises(GrammarError, match=source):
                pool.grammar(compilation, waited=0.0)
        assert backend.compiled.count(source) == 1


def test_too_long_a_compile_is_refused_and_not_begun_again(
    pool: CompilePool, backend: GatedBackend
) -> None:
    slow = pool.submit(regex("slow"))
    assert backend.entered.acquire(timeout=WAIT)
    queued = pool.submit(regex("queued"))
    with pytest.raises(GrammarError, match="within 10 s"):
        pool.grammar(slow, waited=10.0)
    with pytest.raises(CompileOverload):
        pool.grammar(queued, waited=10.0)
    with pytest.raises(GrammarError, match="within 10 s"):
        pool.grammar(pool.submit(regex("slow")), waited=0.0)
    assert backend.compiled == ["slow"]
    # What comes of it in the end is of use all the same.
    backend.gate.set()
    settled(pool, queued)
    assert pool.grammar(pool.submit(regex("slow")), waited=0.0) is not None


def test_what_nobody_waits_for_is_not_begun(pool: CompilePool, backend: GatedBackend) -> None:
    running = pool.submit(regex("running"))
    assert backend.entered.acquire(timeout=WAIT)
    left, wanted = pool.submit(regex("left")), pool.submit(regex("wanted"))
    pool.leave(left)
    backend.gate.set()
    settled(pool, running)
    settled(pool, wanted)
    assert backend.compiled == ["running", "wanted"]
    assert settled(pool, pool.submit(regex("left"))).grammar is not None


def test_the_cache_drops_what_was_not_used_for_longest() -> None:
    cache = GrammarCache(25)
    for name in ("a", "b"):
        cache.put(name, Sized(10))
    assert cache.get("a") is not None
    cache.put("c", Sized(10))
    assert cache.get("b") is None and cache.get("a") is not None
    assert (len(cache), cache.nbytes) == (2, 20)
    cache.put("huge", Sized(100))
    assert (len(cache), cache.nbytes) == (1, 100)
