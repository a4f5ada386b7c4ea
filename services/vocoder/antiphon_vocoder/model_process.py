"""The front's side of a model process: starts it, routes its messages, survives its death."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from antiphon_core.errors import AntiphonError, FailedPrecondition, Unavailable
from antiphon_core.ipc.worker import Worker, WorkerExit, WorkerProcess
from antiphon_core.lifecycle import Lifecycle

from antiphon_vocoder.messages import Stop
from antiphon_vocoder.metrics import SpeechMetrics

RESTART_RETRY_SECONDS = 2.0
_RESTART_WAIT_SECONDS = 30.0

Output = TypeVar("Output")
WorkerFactory = Callable[..., Worker]


class ModelProcess(Generic[Output]):
    """One process and the streams that it works on, by slot.

    Args:
        component: its name for the lifecycle, metrics and logs.
        title: what messages to callers call it.
        module: that runs as the process.
        inbound: union of the structs that it sends.
        config: sent at every start.
        lifecycle: told of boot phases, and degraded while the process is away.
        make_worker: takes WorkerProcess's arguments; tests pass another.
    """

    def __init__(
        self,
        *,
        component: str,
        title: str,
        module: str,
        inbound: Any,
        config: object,
        lifecycle: Lifecycle,
        metrics: SpeechMetrics,
        make_worker: WorkerFactory = WorkerProcess,
    ) -> None:
        self._component = component
        self._title = title
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._streams: dict[int, tuple[int, Callable[[Output | AntiphonError], None]]] = {}
        self._ready = asyncio.Event()
        self._failure = ""
        self._booted = False
        self.resident_bytes = 0
        self._worker = make_worker(
            name=component,
            module=module,
            inbound=inbound,
            on_message=self._on_message,
            on_exit=self._on_exit,
            start_message=config,
            stop_message=Stop(),
        )

    @property
    def pid(self) -> int | None:
        """Process id while alive."""
        return self._worker.pid

    @property
    def restarts(self) -> int:
        """Restarts so far."""
        return self._worker.restarts

    @property
    def stream_count(self) -> int:
        """Open streams."""
        return len(self._streams)

    async def start(self) -> None:
        """Starts the process and waits until it is loaded and warm.

        Raises:
            FailedPrecondition: it cannot boot; the message says why.
        """
        await self._worker.start()
        await self._ready.wait()
        if self._failure:
            raise FailedPrecondition(
                f"the {self._title} cannot boot: {self._failure}", reason="BOOT_FAILED"
            )
        self._booted = True

    async def stop(self, grace: float) -> None:
        """Ends the process."""
        await self._worker.stop(grace)

    def send(self, message: object) -> None:
        """Queues a message for the process; what a dead one misses, ``on_exit`` has answered."""
        if self._ready.is_set():
            self._worker.send(message)

    def close(self, slot: int, generation: int) -> None:
        """Ends a stream; a second call does nothing."""
        known = self._streams.get(slot)
        if known is not None and known[0] == generation:
            del self._streams[slot]
            self.send(self._closing(slot, generation))

    async def _open(
        self,
        slot: int,
        generation: int,
        opening: object,
        sink: Callable[[Output | AntiphonError], None],
    ) -> None:
        """Begins a stream; a process that is being restarted is waited for.

        Raises:
            Unavailable: the restart takes too long.
        """
        try:
            async with asyncio.timeout(_RESTART_WAIT_SECONDS):
                await self._ready.wait()
        except TimeoutError:
            raise Unavailable(
                f"the {self._title} is starting again",
                reason="NO_BACKEND",
                retry_after=RESTART_RETRY_SECONDS,
            ) from None
        self.send(opening)
        self._streams[slot] = (generation, sink)

    def _closing(self, slot: int, generation: int) -> object:
        """The message that frees a slot there."""
        raise NotImplementedError

    def _on_message(self, message: Any) -> None:
        raise NotImplementedError

    def _on_phase(self, phase: str) -> None:
        if not self._booted:
            self._lifecycle.booting(f"{self._component}_{phase}")

    def _on_ready(self) -> None:
        self._ready.set()
        self._lifecycle.recovered(self._component)

    def _on_failed_boot(self, error: str) -> None:
        self._failure = error
        self._ready.set()

    def _route(self, slot: int, generation: int, message: Output | AntiphonError) -> None:
        known = self._streams.get(slot)
        if known is not None and known[0] == generation:
            known[1](message)

    def _on_exit(self, exit_record: WorkerExit) -> None:
        streams, self._streams = self._streams, {}
        self._ready.clear()
        for _, sink in streams.values():
            sink(
                Unavailable(
                    f"the {self._title} died ({exit_record.description})",
                    reason="WORKER_DIED",
                    retry_after=RESTART_RETRY_SECONDS if exit_record.will_restart else None,
                )
            )
        if not self._booted:
            self._on_failed_boot(self._failure or f"it died with {exit_record.description}")
        elif exit_record.will_restart:
            self._metrics.worker_restarts.labels(self._component).inc()
            self._lifecycle.degraded(self._component, f"restarting after {exit_record.description}")
        else:
            self._lifecycle.failed(
                f"the {self._title} died too often, last by {exit_record.description}"
            )
