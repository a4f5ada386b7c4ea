"""Shows a run: a bar in a terminal, a log line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from antiphon_core.logs import get_logger
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.load.drive import Arrivals

LOG_EVERY_S = 5.0
OUTCOMES = ("completed", "cancelled", "failed", "lost")

log = get_logger("load")


class Shown(Protocol):
    """A run as far as it is shown."""

    in_flight: int

    @property
    def records(self) -> Sequence[Any]:
        """What has ended."""
        ...

    def count(self, outcome: str) -> int:
        """How much ended so."""
        ...


class RunView:
    """A context manager whose ``show`` is the driver's.

    Args:
        console: on standard error, so that results can be piped.
        arrivals: for how much is to come.
        shown: outcomes that are counted.
    """

    def __init__(
        self, console: Console, arrivals: Arrivals, shown: Sequence[str] = OUTCOMES
    ) -> None:
        self._shown = shown
        self._started = self._logged = time.monotonic()
        self._seconds = arrivals.seconds
        self._progress: Progress | None = None
        if console.is_terminal:
            total = arrivals.requests or None
            self._progress = Progress(
                TextColumn("[bold]load"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                console=console,
            )
            self._task = self._progress.add_task("starting", total=total)

    def __enter__(self) -> RunView:
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

    def show(self, run: Shown) -> None:
        """The state of the run."""
        now = time.monotonic()
        done = len(run.records)
        counts = {name: run.count(name) for name in self._shown}
        if self._progress is not None:
            text = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
            text = f"{run.in_flight} in flight; {text}"
            self._progress.update(self._task, completed=done, description=text)
        elif now - self._logged >= LOG_EVERY_S:
            self._logged = now
            elapsed = round(now - self._started, 1)
            log.info("progress", elapsed_s=elapsed, in_flight=run.in_flight, **counts)
