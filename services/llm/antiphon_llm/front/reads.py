"""Prompts of which the engine reads vectors and scores."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Protocol

from antiphon_core.errors import AntiphonError

from antiphon_llm.front.engine_errors import error_of
from antiphon_llm.front.requests import RequestScope
from antiphon_llm.messages import Cancel, Embedding, EmbedSubmit


class RequireRoom(Protocol):
    """Bounds what may be on its way to the engine."""

    def __call__(self, count: int, *, interactive: bool) -> None:
        """Raises AntiphonError where there is no room."""
        ...


class PromptReads:
    """The reads that wait for their answer, by id.

    Args:
        send: to the engine.
        alive: whether there is one.
        require_room: asked before each.
    """

    def __init__(
        self,
        send: Callable[[object], None],
        alive: Callable[[], bool],
        require_room: RequireRoom,
    ) -> None:
        self._send = send
        self._alive = alive
        self._require_room = require_room
        self._serials = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[list[float]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def read(
        self, prompt_ids: list[int], scope: RequestScope, *, readout: str, cache: bool
    ) -> list[float]:
        """The readout's numbers of one prompt; a cancelled caller cancels it in the engine.

        Raises:
            AntiphonError: the engine refuses it, fails, or its deadline passes.
        """
        self._require_room(1, interactive=scope.interactive)
        name = f"{scope.request_id}.{next(self._serials):x}.{readout}"
        future: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        self._waiting[name] = future
        self._send(
            EmbedSubmit(
                request_id=name,
                prompt_ids=prompt_ids,
                readout=readout,
                deadline=scope.deadline,
                interactive=scope.interactive,
                tenant=scope.tenant,
                cache=cache,
            )
        )
        try:
            return await future
        finally:
            if self._waiting.pop(name, None) is not None and self._alive():
                self._send(Cancel(request_id=name))

    def on_answer(self, message: Embedding) -> None:
        """Hands an answer to whoever waits for it."""
        future = self._waiting.pop(message.request_id, None)
        if future is None or future.done():
            return
        if message.error_reason:
            future.set_exception(error_of(message))
        else:
            future.set_result(message.vector)

    def fail_all(self, error: AntiphonError) -> None:
        """Ends every read with an error."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
