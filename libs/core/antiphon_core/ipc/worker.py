"""Starts, supervises and talks to one worker process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from antiphon_core.config import process_environment
from antiphon_core.errors import FailedPrecondition, Unavailable
from antiphon_core.ipc.channel import FrontChannel
from antiphon_core.ipc.child_process import ChildProcess
from antiphon_core.ipc.codec import MessageDecodeError
from antiphon_core.ipc.supervision import RestartBudget
from antiphon_core.logs import get_logger

_SOCKET_PATH_LIMIT = 100
"""Unix socket paths hold 107 bytes."""
_FIRST_WORDS_SECONDS = 0.05
"""Time for ZeroMQ's thread to see a worker that ended as soon as it came."""
_LAST_WORDS_SECONDS = 2.0
"""Longest wait for what a worker that is gone has sent."""
_KILL_WAIT_SECONDS = 5.0

log = get_logger("ipc.worker")


@dataclass(frozen=True)
class WorkerExit:
    """How a worker ended."""

    pid: int
    code: int | None
    """Exit status; None when a signal ended it."""
    signal: int | None
    will_restart: bool
    """False: the budget is spent and the owner must fail."""
    uptime: float
    """Seconds."""

    @property
    def description(self) -> str:
        """``exit status 1`` or ``SIGKILL``."""
        if self.signal is not None:
            with contextlib.suppress(ValueError):
                return signal.Signals(self.signal).name
            return f"signal {self.signal}"
        return f"exit status {self.code}"


class Worker(Protocol):
    """What an owner needs from its worker; LocalTransport has the same."""

    @property
    def pid(self) -> int | None:
        """Process id while alive."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the worker runs."""
        ...

    @property
    def restarts(self) -> int:
        """Restarts so far."""
        ...

    async def start(self) -> None:
        """Starts the worker; returns before it is up."""
        ...

    def send(self, message: object) -> None:
        """Queues a message in order; never blocks."""
        ...

    async def stop(self, grace: float = 5.0) -> None:
        """Ends the worker."""
        ...


class WorkerProcess:
    """A supervised ``python -m module`` with a typed message channel.

    All methods and callbacks run on the event loop. A death that ``stop`` did not ask for
    calls ``on_exit`` before any restart; whatever the dead worker was sent is lost, so the
    owner fails its requests there. ``send`` after that reaches the next worker, behind
    ``start_message``.

    Args:
        name: for logs.
        module: runnable module; it builds ``WorkerEndpoint.from_argv(sys.argv[1:], ...)``.
        args: further arguments.
        inbound: union of the structs that the worker sends.
        on_message: called for each message, in order.
        on_exit: called once per unasked death.
        restart_limit: restarts allowed within ``restart_window`` seconds.
        environment: variables added to this process's environment.
        start_message: first message at each start.
        stop_message: asks the worker to end; without one ``stop`` sends SIGTERM.
    """

    def __init__(
        self,
        *,
        name: str,
        module: str,
        args: Sequence[str] = (),
        inbound: Any,
        on_message: Callable[[object], None],
        on_exit: Callable[[WorkerExit], None],
        restart_limit: int = 3,
        restart_window: float = 600.0,
        environment: Mapping[str, str] | None = None,
        start_message: object | None = None,
        stop_message: object | None = None,
    ) -> None:
        self._name = name
        self._module = module
        self._args = tuple(args)
        self._inbound = inbound
        self._on_message = on_message
        self._on_exit = on_exit
        self._budget = RestartBudget(restart_limit, restart_window)
        self._environment = dict(environment or {})
        self._start_message = start_message
        self._stop_message = stop_message
        self._directory: Path | None = None
        self._channel: FrontChannel | None = None
        self._process: ChildProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._generation = 0
        self._stopping = False
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """Process id while alive."""
        return self._process.pid if self._process is not None and self.alive else None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Starts the process and its supervision; returns before the worker is up.

        Raises:
            FailedPrecondition: already started, or the temporary directory's path is too long.
        """
        if self._supervisor is not None:
            raise FailedPrecondition(f"worker {self._name} is already started")
        self._stopping = False
        self._directory = _private_directory()
        try:
            self._open_channel()
            process = self._spawn()
        except BaseException:
            self._release()
            raise
        self._supervisor = asyncio.create_task(self._supervise(process), name=f"{self._name}-watch")

    def send(self, message: object) -> None:
        """Queues a message in order; never blocks.

        Raises:
            Unavailable: the worker is stopped or its restart budget is spent.
            TypeError: the message cannot be encoded.
        """
        if self._channel is None:
            raise Unavailable(f"worker {self._name} does not run", reason="WORKER_DIED")
        self._channel.send(message)

    async def stop(self, grace: float = 5.0) -> None:
        """Ends the worker: stop message or SIGTERM, after ``grace`` seconds SIGKILL.

        Messages that arrive meanwhile are still delivered; ``on_exit`` is not called.
        """
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            if self._stop_message is not None and self._channel is not None:
                self._channel.send(self._stop_message)
            else:
                process.send_signal(signal.SIGTERM)
            await self._wait_or_kill(process, grace)
        if self._supervisor is not None:
            await self._supervisor
            self._supervisor = None
        self._release()

    async def _wait_or_kill(self, process: ChildProcess, grace: float) -> None:
        try:
            await asyncio.wait_for(process.wait(), grace)
        except TimeoutError:
            log.warning("worker_killed", worker=self._name, pid=process.pid, grace=grace)
            process.send_signal(signal.SIGKILL)
            await asyncio.wait_for(process.wait(), _KILL_WAIT_SECONDS)

    async def _supervise(self, process: ChildProcess) -> None:
        while True:
            started = time.monotonic()
            status = await process.wait()
            await self._hear_last_words(status)
            self._close_channel()
            if self._stopping:
                return
            will_restart = self._budget.take()
            exit_record = WorkerExit(
                pid=process.pid,
                code=status if status >= 0 else None,
                signal=-status if status < 0 else None,
                will_restart=will_restart,
                uptime=time.monotonic() - started,
            )
            log.error(
                "worker_died",
                worker=self._name,
                pid=process.pid,
                how=exit_record.description,
                uptime=round(exit_record.uptime, 3),
                will_restart=will_restart,
            )
            if will_restart:
                self._open_channel()
            self._report(exit_record)
            if not will_restart or self._stopping:
                return
            self.restarts += 1
            try:
                process = self._spawn()
            except OSError as error:
                log.error("worker_spawn_failed", worker=self._name, error=str(error))
                self._close_channel()
                self._report(replace(exit_record, will_restart=False))
                return
            if self._stopping:
                process.send_signal(signal.SIGKILL)

    async def _hear_last_words(self, status: int) -> None:
        """A worker that exits by itself may have sent why."""
        channel = self._channel
        if status >= 0 and channel is not None:
            await asyncio.sleep(_FIRST_WORDS_SECONDS)
            await channel.until_left(_LAST_WORDS_SECONDS)
        if self._channel is not None:
            self._channel.read_available()

    def _report(self, exit_record: WorkerExit) -> None:
        try:
            self._on_exit(exit_record)
        except Exception:
            log.exception("worker_exit_callback_failed", worker=self._name)

    def _deliver(self, message: object) -> None:
        try:
            self._on_message(message)
        except Exception:
            log.exception(
                "worker_message_callback_failed",
                worker=self._name,
                message_type=type(message).__name__,
            )

    def _on_protocol_error(self, error: MessageDecodeError) -> None:
        """A lost message could leave a request waiting for ever; a restart cannot."""
        log.error("worker_protocol_error", worker=self._name, error=str(error))
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)

    def _spawn(self) -> ChildProcess:
        channel = self._channel
        if channel is None:
            raise FailedPrecondition(f"worker {self._name} is stopped")
        self._process = ChildProcess(
            [
                *(sys.executable, "-m", self._module, *self._args),
                f"--ipc-receive={channel.send_address}",
                f"--ipc-send={channel.receive_address}",
                f"--ipc-parent={os.getpid()}",
            ],
            process_environment(self._environment),
        )
        log.info("worker_started", worker=self._name, pid=self._process.pid)
        return self._process

    def _open_channel(self) -> None:
        """A fresh pair of sockets, so that nothing meant for a dead worker reaches the next."""
        if self._directory is None:
            raise FailedPrecondition(f"worker {self._name} is stopped")
        self._generation += 1
        base = f"ipc://{self._directory}/{self._generation}"
        self._channel = FrontChannel(
            f"{base}-front",
            f"{base}-worker",
            inbound=self._inbound,
            on_message=self._deliver,
            on_protocol_error=self._on_protocol_error,
        )
        if self._start_message is not None:
            self._channel.send(self._start_message)

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _release(self) -> None:
        self._close_channel()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def _private_directory() -> Path:
    """A new directory that only this user may enter (mode 0700)."""
    directory = Path(tempfile.mkdtemp(prefix="antiphon-"))
    if len(os.fsencode(directory)) > _SOCKET_PATH_LIMIT - len("/1000-worker"):
        directory.rmdir()
        raise FailedPrecondition(
            f"the temporary directory {directory.parent} has too long a path for a Unix socket;"
            " set TMPDIR to a shorter one"
        )
    return directory
