"""Requests that wait for their constraint to be compiled before they are queued."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from antiphon_core.logs import get_logger

from antiphon_llm.messages import Submit
from antiphon_llm.structured.backend import Grammar, GrammarError
from antiphon_llm.structured.compile_pool import Compilation, CompileOverload
from antiphon_llm.structured.grammars import Grammars

from .refused import RequestRefused
from .request import Request

_log = get_logger(__name__)

SOURCE_BYTES = 256 << 10
"""Largest constraint."""
_RETRY_SECONDS = 5.0


class ConstraintDesk:
    """Holds requests in the order of their arrival, and gives each its own grammar.

    Args:
        grammars: compiles.
        limit: requests that may wait here.
        clock: monotonic seconds, as in a request's timings.
        wall_clock: time.time() seconds, as in a deadline.
    """

    def __init__(
        self,
        grammars: Grammars,
        *,
        limit: int,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.grammars = grammars
        self._limit = limit
        self._clock = clock
        self._wall_clock = wall_clock
        self._held: dict[str, tuple[Submit, Request, Compilation]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._held

    def using(self, adapter_version: int) -> int:
        """How many that wait use the adapter of this version."""
        return sum(
            request.adapter_version == adapter_version for _, request, _ in self._held.values()
        )

    def hold(self, message: Submit, request: Request) -> None:
        """Begins the compile of a request's constraint.

        Raises:
            RequestRefused: too large, too many wait, or nothing could end the output.
        """
        constraint = message.sampling.constraint
        assert constraint is not None
        size = len(constraint.source.encode())
        if size > SOURCE_BYTES:
            raise RequestRefused(
                f"the constraint has {size} bytes, at most {SOURCE_BYTES} are compiled",
                "INVALID_SCHEMA",
                limit=SOURCE_BYTES,
                observed=size,
            )
        if not self.grammars.ends(request.stop_ids):
            raise RequestRefused(
                "a constrained output needs an end id, and ignore_eos leaves none",
                "INVALID_VALUE",
            )
        if len(self._held) >= self._limit:
            raise RequestRefused(
                "too many constraints wait to be compiled",
                "QUEUE_FULL",
                retry_after=_RETRY_SECONDS,
                limit=self._limit,
                observed=len(self._held),
            )
        compilation = self.grammars.compile(constraint)
        self._held[request.request_id] = (message, request, compilation)

    def take(self) -> Iterator[tuple[Submit, Request, RequestRefused | None]]:
        """The requests that wait no longer, bound to their grammar or with the reason why not."""
        for message, request, compilation in list(self._held.values()):
            refused: RequestRefused | None = None
            try:
                grammar = self._grammar(request, compilation)
                if grammar is None:
                    continue
                assert request.sampler is not None
                self.grammars.bind(request.sampler, grammar, request.stop_ids)
            except RequestRefused as reason:
                refused = reason
            except Exception as defect:
                _log.exception("admission_failed", request_id=request.request_id)
                refused = RequestRefused(f"{type(defect).__name__}: {defect}", "INTERNAL")
            self.drop(request.request_id)
            yield message, request, refused

    def drop(self, request_id: str) -> Submit | None:
        """Lets a request go; None where it does not wait here."""
        held = self._held.pop(request_id, None)
        if held is None:
            return None
        self.grammars.pool.leave(held[2])
        return held[0]

    def drop_all(self) -> Iterator[Submit]:
        """Lets every request go."""
        for request_id in list(self._held):
            message = self.drop(request_id)
            assert message is not None
            yield message

    def _grammar(self, request: Request, compilation: Compilation) -> Grammar | None:
        if request.deadline and request.deadline <= self._wall_clock():
            raise RequestRefused("the deadline passed before it was queued", "DEADLINE")
        waited = self._clock() - request.timings.submitted
        try:
            return self.grammars.pool.grammar(compilation, waited)
        except GrammarError as error:
            raise RequestRefused(
                f"the constraint does not compile: {error}", "INVALID_SCHEMA"
            ) from None
        except CompileOverload as overload:
            raise RequestRefused(str(overload), "OVERLOADED", retry_after=_RETRY_SECONDS) from None
