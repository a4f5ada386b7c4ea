"""Shows a start: one progress bar a service in a terminal, one line a phase elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class BootView:
    """Progress of the services named at construction; a context manager."""

    def __init__(self, console: Console, names: list[str]) -> None:
        self._console = console
        self._started = time.monotonic()
        self._phases: dict[str, str] = {}
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("[bold]{task.fields[service]:<8}"),
                BarColumn(bar_width=30),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                console=console,
            )
            for name in names:
                self._tasks[name] = self._progress.add_task("starting", total=1.0, service=name)

    def __enter__(self) -> BootView:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def phase(self, name: str, phase: str, fraction: float) -> None:
        """A service reports its boot phase."""
        self._show(name, phase or "starting", min(max(fraction, 0.0), 0.99))

    def ready(self, name: str) -> None:
        """A service is ready."""
        self._show(name, "ready", 1.0)

    def _show(self, name: str, text: str, completed: float) -> None:
        if self._progress is not None:
            self._progress.update(self._tasks[name], description=text, completed=completed)
            if completed == 1.0:
                self._progress.stop_task(self._tasks[name])
        elif self._phases.get(name) != text:
            elapsed = time.monotonic() - self._started
            self._console.print(f"{elapsed:6.1f} s  {name:<8} {text}", highlight=False)
        self._phases[name] = text
