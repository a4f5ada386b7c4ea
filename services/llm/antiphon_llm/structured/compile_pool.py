"""Compiles constraints off the engine's thread: each once, a bounded number at a time."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from antiphon_core.logs import get_logger

from antiphon_llm.messages import Constraint

from .backend import Grammar, GrammarBackend, GrammarError

_log = get_logger(__name__)

COMPILE_THREAD = "grammar-"
"""How the names of compiling threads begin."""
_STACK_BYTES = 64 << 20
"""Stack of a compiling thread: the library recurses over nested sources."""
_FAILURES_KEPT = 256


class CompileOverload(RuntimeError):
    """No thread came free for the compile in time: nothing is known of the source."""


class Compilation:
    """One compile, shared by all requests with the same source that come meanwhile.

    Attributes:
        grammar: the result; None before and after a failure.
        error: why there is none, in words; empty before and after a success.
    """

    def __init__(self, key: str, constraint: Constraint) -> None:
        self.key = key
        self.constraint = constraint
        self.started = 0.0
        """time.monotonic() seconds; 0 while it waits for a thread."""
        self.waiters = 0
        self.grammar: Grammar | None = None
        self.error = ""

    @property
    def done(self) -> bool:
        """Whether there is a grammar or an error."""
        return self.grammar is not None or bool(self.error)


class GrammarCache:
    """Grammars by key, the least recently used dropped beyond a number of bytes.

    A grammar larger than the whole cache is kept alone until the next one comes.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._grammars: OrderedDict[str, Grammar] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._grammars)

    def get(self, key: str) -> Grammar | None:
        """The grammar of this key, which becomes the most recently used."""
        grammar = self._grammars.get(key)
        if grammar is not None:
            self._grammars.move_to_end(key)
        return grammar

    def put(self, key: str, grammar: Grammar) -> None:
        """Keeps a grammar that was not there."""
        self._grammars[key] = grammar
        self.nbytes += grammar.nbytes
        while self.nbytes > self._capacity and len(self._grammars) > 1:
            self.nbytes -= self._grammars.popitem(last=False)[1].nbytes


class CompilePool:
    """Threads over one backend, its cache, and what is being compiled.

    A compile cannot be interrupted: one that takes too long keeps its thread until it is done.
    Its source is refused at once when it comes again meanwhile.

    Args:
        backend: compiles.
        threads: compiles at a time.
        cache_bytes: grammars that are kept.
        timeout_s: seconds that a request waits.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        backend: GrammarBackend,
        *,
        threads: int,
        cache_bytes: int,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._timeout = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Compilation | None] = queue.SimpleQueue()
        self._cache = GrammarCache(cache_bytes)
        self._failures: OrderedDict[str, str] = OrderedDict()
        self._running: dict[str, Compilation] = {}
        self._counts = dict.fromkeys(("hit", "joined", "compiled", "failed", "timeout"), 0)
        self._threads = self._start(threads)

    def submit(self, constraint: Constraint) -> Compilation:
        """The compile of a constraint: done already, under way or new. ``leave`` it once."""
        source = f"{constraint.kind}\0{constraint.source}\0{self._backend.identity}"
        key = hashlib.sha256(source.encode()).hexdigest()
        with self._lock:
            compilation = self._running.get(key)
            if compilation is not None:
                self._counts["joined"] += 1
            else:
                compilation = Compilation(key, constraint)
                compilation.grammar = self._cache.get(key)
                compilation.error = self._failures.get(key, "")
                if compilation.done:
                    self._counts["hit"] += 1
                else:
                    self._running[key] = compilation
                    self._queue.put(compilation)
            compilation.waiters += 1
        return compilation

    def leave(self, compilation: Compilation) -> None:
        """One who waited does so no longer; what nobody waits for is not begun."""
        with self._lock:
            compilation.waiters -= 1

    def grammar(self, compilation: Compilation, waited: float) -> Grammar | None:
        """The result, None while it may still come.

        Args:
            compilation: from ``submit``.
            waited: seconds since this request came.

        Raises:
            GrammarError: the constraint does not compile, or not in time.
            CompileOverload: it was not begun in time.
        """
        with self._lock:
            if compilation.error:
                raise GrammarError(compilation.error)
            if compilation.grammar is not None or waited < self._timeout:
                return compilation.grammar
            self._counts["timeout"] += 1
            if not compilation.started:
                raise CompileOverload("the constraint waits for others to be compiled")
            compilation.error = f"it did not compile within {self._timeout:g} s"
            self._remember(compilation.key, compilation.error)
            self._running.pop(compilation.key, None)
        _log.warning("grammar_timeout", kind=compilation.constraint.kind)
        raise GrammarError(compilation.error)

    def counters(self) -> dict[str, int]:
        """Compiles by outcome, those that happened."""
        with self._lock:
            counts = dict(self._counts)
        return {f"grammar: {name}": count for name, count in counts.items() if count}

    def close(self) -> None:
        """Ends the threads behind what is queued; waits for none that compiles."""
        with self._lock:
            for compilation in self._running.values():
                compilation.waiters = 0
        for _ in self._threads:
            self._queue.put(None)

    def _start(self, count: int) -> list[threading.Thread]:
        """Daemons: a compile that does not end holds no exit up."""
        before = threading.stack_size(_STACK_BYTES)
        try:
            threads = [
                threading.Thread(target=self._serve, name=f"{COMPILE_THREAD}{n}", daemon=True)
                for n in range(count)
            ]
            for thread in threads:
                thread.start()
        finally:
            threading.stack_size(before)
        return threads

    def _serve(self) -> None:
        while (compilation := self._queue.get()) is not None:
            with self._lock:
                if compilation.waiters < 1:
                    self._running.pop(compilation.key, None)
                    continue
                compilation.started = self._clock()
            self._compile(compilation)

    def _compile(self, compilation: Compilation) -> None:
        grammar, error = None, ""
        try:
            grammar = self._backend.compile(compilation.constraint)
        except GrammarError as refused:
            error = str(refused) or "the compiler does not say why"
        except Exception as defect:
            _log.exception("grammar_failed", kind=compilation.constraint.kind)
            error = f"{type(defect).__name__}: {defect}"
        with self._lock:
            compilation.grammar, compilation.error = grammar, error
            if self._running.get(compilation.key) is compilation:
                del self._running[compilation.key]
            if grammar is not None:
                self._counts["compiled"] += 1
                self._failures.pop(compilation.key, None)
                if self._cache.get(compilation.key) is None:
                    self._cache.put(compilation.key, grammar)
            else:
                self._counts["failed"] += 1
                self._remember(compilation.key, error)

    def _remember(self, key: str, error: str) -> None:
        self._failures[key] = error
        while len(self._failures) > _FAILURES_KEPT:
            self._failures.popitem(last=False)
