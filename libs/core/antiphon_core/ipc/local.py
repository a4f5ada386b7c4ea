"""A worker in a thread of this process: same messages, no sockets. For tests."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from antiphon_core.errors import Unavailable
from antiphon_core.ipc.codec import Codec
from antiphon_core.ipc.endpoint import Endpoint
from antiphon_core.ipc.inbox import Inbox
from antiphon_core.ipc.worker import WorkerExit
from antiphon_core.logs import get_logger

log = get_logger("ipc.local")


class LocalTransport:
    """Runs ``target(endpoint)`` in a thread and talks to it as WorkerProcess does.

    Messages pass through the codec, so a type that a socket would refuse is refused here too.
    When ``target`` returns or raises, ``on_exit`` is called with ``will_restart`` False.

    Args:
        target: the worker's loop; it must end when ``stop_message`` arrives.
        worker_inbound: union of the structs that the worker receives.
        inbound: union of the structs that the worker sends.
        on_message: called on the event loop for each message, in order.
        on_exit: called on the event loop when the worker ends unasked.
        start_message: first message.
        stop_message: ends the worker.
    """

    def __init__(
        self,
        target: Callable[[Endpoint], None],
        *,
        worker_inbound: Any,
        inbound: Any,
        on_message: Callable[[object], None],
        on_exit: Callable[[WorkerExit], None],
        start_message: object | None = None,
        stop_message: object | None = None,
    ) -> None:
        self._target = target
        self._to_worker = Codec(worker_inbound)
        self._to_front = Codec(inbound)
        self._on_message = on_message
        self._on_exit = on_exit
        self._start_message = start_message
        self._stop_message = stop_message
        self._inbox = Inbox()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._stopping = False
        self._started = 0.0
        self.restarts = 0

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        # The thread lives for a moment after it has told its end.
        return self._thread is not None and self._thread.is_alive() and not self._ended.is_set()

    @property
    def pid(self) -> int | None:
        """This process's id while the thread runs."""
        return os.getpid() if self.alive else None

    async def start(self) -> None:
        """Starts the thread."""
        self._loop = asyncio.get_running_loop()
        self._started = time.monotonic()
        if self._start_message is not None:
            self._put(self._start_message)
        self._thread = threading.Thread(target=self._run, name="local-worker", daemon=True)
        self._thread.start()

    def send(self, message: object) -> None:
        """Queues a message.

        Raises:
            Unavailable: the thread does not run.
            MessageDecodeError: the worker does not know this type.
        """
        if not self.alive:
            raise Unavailable("the local worker does not run", reason="WORKER_DIED")
        self._put(message)

    async def stop(self, grace: float = 5.0) -> None:
        """Sends the stop message, if any, and waits for the thread for ``grace`` seconds."""
        self._stopping = True
        if not self.alive:
            return
        if self._stop_message is not None:
            self._put(self._stop_message)
        else:
            self._inbox.fail(ConnectionError("the front closed the channel"))
        await asyncio.wait_for(self._ended.wait(), grace)

    def _put(self, message: object) -> None:
        self._inbox.put(self._to_worker.decode(self._to_worker.encode(message)))

    def _run(self) -> None:
        code = 0
        try:
            self._target(_LocalEndpoint(self._inbox, self._answer))
        except Exception:
            log.exception("local_worker_failed")
            code = 1
        self._call_front(self._finish, code)

    def _answer(self, message: object) -> None:
        decoded = self._to_front.decode(self._to_front.encode(message))
        self._call_front(self._on_message, decoded)

    def _call_front(self, function: Callable[..., None], argument: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, argument)

    def _finish(self, code: int) -> None:
        self._ended.set()
        if not self._stopping:
            uptime = time.monotonic() - self._started
            self._on_exit(WorkerExit(os.getpid(), code, None, False, uptime))


class _LocalEndpoint:
    """The Endpoint that the thread sees."""

    def __init__(self, inbox: Inbox, answer: Callable[[object], None]) -> None:
        self._inbox = inbox
        self._answer = answer

    def drain(self) -> list[object]:
        return self._inbox.drain()

    def wait(self, timeout: float | None) -> bool:
        return self._inbox.wait(timeout)

    def send(self, message: object) -> None:
        self._answer(message)

    def close(self, flush_seconds: float = 2.0) -> None:
        """Nothing is buffered here."""
