"""A child process of an event loop, started without a fork of this process's memory."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence


class ChildProcess:
    """A running command, to be made and used on the event loop.

    ``asyncio.create_subprocess_exec`` on uvloop forks, and every fork runs gRPC's handlers, which
    start its threads again in the child: of a process that serves calls about one child in thirty
    died by SIGSEGV before its exec. ``subprocess`` uses vfork, which runs no handlers.

    Args:
        command: program and arguments.
        environment: the child's whole environment.

    Raises:
        OSError: the program cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=environment,
            # A Ctrl-C in the terminal must reach the parent only, which drains first. A session of
            # its own would do that too, but Linux then shares the cores out among sessions instead
            # of threads (sched(7), autogroup), and a hop waits ten times its work for a recogniser.
            process_group=0,
        )
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        # A daemon: the wait for a child that outlives the loop must not hold this process.
        threading.Thread(target=self._reap, name=f"child-{self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, the negative number of a signal, or None while the child runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """The status once the child has ended."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal; nothing when the child has ended."""
        self._process.send_signal(number)

    def _reap(self) -> None:
        status = self._process.wait()
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set_result, status)
