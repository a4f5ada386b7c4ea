"""What an operator asks of the engine: each message is answered by one Done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from antiphon_core.errors import AntiphonError, FailedPrecondition

from antiphon_llm.adapter_messages import AdapterFacts, LoadAdapter, UnloadAdapter
from antiphon_llm.front.engine_errors import error_of
from antiphon_llm.messages import AnswerNow, Done, FlushCache, Sleep, StopNow, Wake


class EngineControl:
    """Orders, flush, sleep, wake and adapters, and who waits for their answers; on the event loop.

    A caller who leaves does not call off what the engine was asked for.

    Args:
        send: queues a message for the engine; raises Unavailable when none runs.
    """

    def __init__(self, send: Callable[[object], None]) -> None:
        self._send = send
        self._names = (f"control.{serial:x}" for serial in count())
        self._waiting: dict[str, asyncio.Future[Done]] = {}

    async def stop(self, sequences: Sequence[str]) -> None:
        """Ends these sequences of one request normally, on their next token.

        Raises:
            FailedPrecondition: none of them can be ended; says why.
        """
        await self._order([StopNow(next(self._names), name) for name in sequences])

    async def answer(self, sequences: Sequence[str]) -> None:
        """Closes the open reasoning blocks of these sequences of one request.

        Raises:
            FailedPrecondition: none of them reasons now; says why.
        """
        await self._order([AnswerNow(next(self._names), name) for name in sequences])

    async def flush(self, tenant: str | None) -> int:
        """Forgets one tenant's cached prefixes, or with None all; entries that are free now."""
        done = await self._ask(FlushCache(next(self._names), tenant))
        return done.entries

    async def sleep(self, timeout: float | None) -> int:
        """Ends running work, then gives memory back; how many bytes.

        Args:
            timeout: seconds for running work; None is the engine's own limit.

        Raises:
            FailedPrecondition: requests still run after that time, or a wake came between.
        """
        message = Sleep(next(self._names))
        if timeout is not None:
            message.timeout_s = timeout
        return (await self._ask(message)).released_bytes

    async def wake(self) -> None:
        """Undoes a sleep.

        Raises:
            ResourceExhausted: the memory is not there; the engine stays asleep.
        """
        await self._ask(Wake(next(self._names)))

    async def load_adapter(self, name: str, path: str, owner: str | None) -> AdapterFacts:
        """Has an adapter read and served, for a tenant or with None for all.

        Raises:
            AntiphonError: why it is not.
        """
        message = LoadAdapter(next(self._names), name, path, owner or "", owner is None)
        done = await self._ask(message)
        assert done.adapter is not None
        return done.adapter

    async def unload_adapter(self, name: str, owner: str | None) -> None:
        """Has an adapter forgotten; raises AntiphonError where it is not."""
        await self._ask(UnloadAdapter(next(self._names), name, owner or "", owner is None))

    def on_done(self, done: Done) -> None:
        """The engine's answer; one that nobody waits for any more is dropped."""
        future = self._waiting.pop(done.request_id, None)
        if future is None or future.done():
            return
        if done.error_reason:
            future.set_exception(error_of(done))
        else:
            future.set_result(done)

    def fail_all(self, error: AntiphonError) -> None:
        """The engine ended and answers nothing more."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    async def _order(self, messages: Sequence[StopNow | AnswerNow]) -> None:
        """What holds for one sequence at least has been done."""
        if not messages:
            raise FailedPrecondition("the request is not running")
        answers = await asyncio.gather(*map(self._ask, messages), return_exceptions=True)
        refusals = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(refusals) == len(messages):
            raise refusals[0]

    async def _ask(
        self,
        message: StopNow | AnswerNow | FlushCache | Sleep | Wake | LoadAdapter | UnloadAdapter,
    ) -> Done:
        self._send(message)
        future: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self._waiting[message.request_id] = future
        try:
            return await future
        finally:
            self._waiting.pop(message.request_id, None)
