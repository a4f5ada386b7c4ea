"""The server's side of a call that carries many streams at once."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Container
from typing import Generic, TypeVar

from antiphon_core.errors import AntiphonError, Internal, InvalidArgument
from antiphon_core.lifecycle import Lifecycle, LifecycleSnapshot, State
from antiphon_core.logs import get_logger

Request = TypeVar("Request")
Response = TypeVar("Response")

ID_LENGTH = 128
"""Characters of a stream's and of a request's id."""

log = get_logger("rpc.multiplexed")


class MultiplexedCall(ABC, Generic[Request, Response]):
    """Takes messages as they come, and sends what has gathered for all streams as one message.

    A subclass keeps the streams; all its methods run on the event loop.

    Args:
        lifecycle: a draining process ends the call when its streams are done.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._something = asyncio.Event()
        self._input_over = False
        self._failure: AntiphonError | None = None

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether no stream lives and nothing waits to be sent."""

    @abstractmethod
    def accept(self, request: Request) -> None:
        """Takes one message of the caller.

        Raises:
            AntiphonError: it ends the call with every stream on it.
        """

    @abstractmethod
    def gather(self) -> Response | None:
        """What has to be said now; ``wake`` for what must wait for another message."""

    @abstractmethod
    def release(self) -> None:
        """Ends every stream that still lives: the call is over."""

    def input_ended(self) -> None:
        """The caller has half-closed."""
        return

    def wake(self) -> None:
        """There is something to gather."""
        self._something.set()

    async def run(self, requests: AsyncIterator[Request]) -> AsyncGenerator[Response, None]:
        """Serves the call until its input is closed and every stream has ended.

        Raises:
            AntiphonError: what ``accept`` refused.
        """
        loop = asyncio.get_running_loop()

        def changed(_: LifecycleSnapshot) -> None:
            loop.call_soon_threadsafe(self.wake)

        unsubscribe = self._lifecycle.subscribe(changed)
        reader = asyncio.create_task(self._read(requests), name="multiplexed-input")
        try:
            while not self._over():
                await self._something.wait()
                self._something.clear()
                message = self.gather()
                if message is not None:
                    yield message
            if self._failure is not None:
                raise self._failure
        finally:
            unsubscribe()
            reader.cancel()
            self.release()

    def _over(self) -> bool:
        if self._failure is not None:
            return True
        if not self.is_idle:
            return False
        return self._input_over or self._lifecycle.state is State.DRAINING

    async def _read(self, requests: AsyncIterator[Request]) -> None:
        try:
            async for request in requests:
                self.accept(request)
            self.input_ended()
        except AntiphonError as error:
            self._failure = error
        except Exception:
            log.exception("multiplexed_input_failed")
            self._failure = Internal("the stream's input failed")
        finally:
            self._input_over = True
            self.wake()


def check_ids(stream_id: str, request_id: str, live: Container[str]) -> None:
    """Checks the ids of a stream that begins.

    Args:
        stream_id: the caller's id.
        request_id: its id in logs; may be empty.
        live: ids that are in use.

    Raises:
        InvalidArgument: STREAM_PROTOCOL for the stream's id, INVALID_VALUE for the request's.
    """
    if not 1 <= len(stream_id) <= ID_LENGTH:
        raise InvalidArgument(
            f"start.stream_id must have 1 to {ID_LENGTH} characters",
            reason="STREAM_PROTOCOL",
            field="start.stream_id",
        )
    if len(request_id) > ID_LENGTH:
        raise InvalidArgument(
            f"start.request_id must have at most {ID_LENGTH} characters",
            field="start.request_id",
        )
    if stream_id in live:
        raise InvalidArgument(
            f"start.stream_id {stream_id!r} is already used on this stream",
            reason="STREAM_PROTOCOL",
            field="start.stream_id",
        )
