"""One supervised process of the suite, its log file and its restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from antiphon_core.config import BOOT_REFUSED
from antiphon_core.ipc.supervision import RestartBudget

RESTART_WINDOW_S = 600.0
_CHILD = Path(__file__).with_name("child.py")


class ServiceProcess:
    """Starts a command, appends its output to a log file and restarts it under a budget.

    A process that refused its configuration (exit status 71) is not restarted.

    Args:
        on_exit: called with (name, exit code, whether it will be restarted) after each death
            that ``stop`` did not ask for.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_path: Path,
        *,
        restart_limit: int,
        on_exit: Callable[[str, int, bool], None],
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log_path = log_path
        self._budget = RestartBudget(restart_limit, RESTART_WINDOW_S)
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    async def start(self) -> None:
        """Starts the process and the watch over it."""
        await self._spawn()
        self._watcher = asyncio.create_task(self._watch(), name=f"watch {self.name}")

    async def stop(self, grace: float) -> None:
        """SIGTERM, then SIGKILL after ``grace`` seconds. Idempotent."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), grace)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._watcher is not None:
            await self._watcher

    def log_tail(self, lines: int = 12) -> str:
        """The last lines of the log, for an error report."""
        if not self.log_path.exists():
            return ""
        return "\n".join(
            self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
        )

    async def _spawn(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-S", str(_CHILD), str(os.getpid()), *self.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def _watch(self) -> None:
        while True:
            assert self._process is not None
            code = await self._process.wait()
            if self._stopping:
                return
            restart = code != BOOT_REFUSED and self._budget.take()
            self._on_exit(self.name, code, restart)
            if not restart:
                return
            await self._spawn()
