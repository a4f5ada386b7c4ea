"""Runs one service from early bind to exit: boot, signals, drain, exit status."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import uvloop

from antiphon_core.config import BOOT_REFUSED
from antiphon_core.errors import AntiphonError
from antiphon_core.lifecycle import Lifecycle, LifecycleSnapshot, State
from antiphon_core.logs import get_logger
from antiphon_core.monitor import ProcessMonitor
from antiphon_core.rpc.server import RpcServer
from antiphon_core.telemetry import flush_tracing

LOOP_FAILED = 70
"""Exit status of a process that failed in service."""

_PROGRESS_CHECK_SECONDS = 1.0

log = get_logger("service")


class StopRequest:
    """The wish that the process ends; set by signals, by RPC or by the service itself."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        """A second wish: running work gets no grace."""
        self.grace: float | None = None

    def ask(self, grace: float | None = None) -> None:
        """Asks to drain and exit; asking again skips the grace.

        Args:
            grace: seconds for running work; None takes the configured ones.
        """
        if self.asked.is_set():
            self.hurried.set()
        else:
            self.grace = grace
            self.asked.set()


@dataclass(frozen=True)
class StopPolicy:
    """How a service ends. All in seconds."""

    drain_delay: float = 0.0
    """Not ready but still serving, so that balancers notice first; 5 behind a balancer."""
    drain_grace: float = 60.0
    """For running work."""
    close_limit: float = 10.0
    """For the service's own ``close``."""
    boot_progress_limit: float = 300.0
    """Boot without any progress for so long dumps all stacks and fails."""


async def run_service(
    server: RpcServer,
    boot: Callable[[], Awaitable[None]],
    *,
    drain: Callable[[float], Awaitable[object]] | None = None,
    close: Callable[[], Awaitable[None]] | None = None,
    stop: StopRequest | None = None,
    policy: StopPolicy | None = None,
    version: str = "",
) -> int:
    """Binds at once, boots, serves until asked to stop, drains; returns the exit status.

    SIGTERM and SIGINT ask to stop; a second one skips the grace. SIGUSR1 dumps all stacks.
    A failed lifecycle ends the process.

    Args:
        server: with all services added.
        boot: loads what the service needs and reports phases to the lifecycle; when it
            returns, the service is ready.
        drain: waits up to the given seconds for work that is no RPC of the server, such as HTTP
            requests; cancelled when the grace is skipped. Health answers meanwhile.
        close: frees what boot made; runs after the last call.
        stop: the wish to stop, where the service or its node admin has one to share.
        policy: times.
        version: release of the service, for the build metric.

    Returns:
        0 after an orderly stop, 71 when boot failed, 70 after a failure in service.
    """
    wish = stop or StopRequest()
    times = policy or StopPolicy()
    lifecycle = server.lifecycle
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with _signals(wish), _failure(lifecycle) as failed:
        monitor = asyncio.create_task(
            ProcessMonitor(server.service, version, lifecycle).run(), name="monitor"
        )
        try:
            lifecycle.booting("start")
            await server.start()
            status = await _boot(boot, lifecycle, wish, failed, times)
            if status == 0:
                status = await _serve(lifecycle, wish, failed)
        except AntiphonError as error:
            _report(server.service, error.message)
            lifecycle.failed(error.message)
            status = BOOT_REFUSED
        await _wind_down(server, wish, times, drain, orderly=status == 0)
        await _close(close, times.close_limit)
        monitor.cancel()
        await asyncio.gather(monitor, return_exceptions=True)
    await asyncio.to_thread(flush_tracing)
    log.info("service_stopped", status=status)
    return status


def run_main(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Runs ``__main__`` on uvloop: a typed error before ``run_service`` is one line and 71."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())
    except AntiphonError as error:
        _report("", error.message)
        return BOOT_REFUSED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


async def _boot(
    boot: Callable[[], Awaitable[None]],
    lifecycle: Lifecycle,
    wish: StopRequest,
    failed: asyncio.Event,
    times: StopPolicy,
) -> int:
    """Runs boot until it ends, fails, stalls or the process is asked to stop."""
    started = time.monotonic()
    task = asyncio.ensure_future(boot())
    waits = [asyncio.ensure_future(event.wait()) for event in (wish.asked, failed)]
    stalled = False
    while not task.done() and not stalled and not any(wait.done() for wait in waits):
        await asyncio.wait(
            (task, *waits),
            timeout=_PROGRESS_CHECK_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        stalled = lifecycle.seconds_without_progress > times.boot_progress_limit
    for wait in waits:
        wait.cancel()
    if not task.done():
        if stalled:
            _fail_stalled_boot(lifecycle, times.boot_progress_limit)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return BOOT_REFUSED if lifecycle.state is State.FAILED else 0
    error = task.exception()
    if isinstance(error, AntiphonError):
        raise error
    if error is not None:
        log.error("boot_failed", phase=lifecycle.phase, exc_info=error)
        lifecycle.failed(f"{type(error).__name__} in phase {lifecycle.phase}")
    if lifecycle.state is State.FAILED:
        return BOOT_REFUSED
    lifecycle.ready()
    log.info("service_ready", seconds=round(time.monotonic() - started, 3))
    return 0


def _fail_stalled_boot(lifecycle: Lifecycle, limit: float) -> None:
    faulthandler.dump_traceback(all_threads=True)
    log.error("boot_stalled", phase=lifecycle.phase, limit=limit)
    lifecycle.failed(f"no progress in phase {lifecycle.phase} for {limit:g} s")


async def _serve(lifecycle: Lifecycle, wish: StopRequest, failed: asyncio.Event) -> int:
    """Waits for the wish to stop (0) or a failure (70)."""
    await _first_of(wish.asked, failed)
    if wish.asked.is_set():
        return 0
    log.error("service_failed", reason=lifecycle.reason)
    return LOOP_FAILED


async def _wind_down(
    server: RpcServer,
    wish: StopRequest,
    times: StopPolicy,
    drain: Callable[[float], Awaitable[object]] | None,
    *,
    orderly: bool,
) -> None:
    """Lets running work end; a second wish or a failure ends it at once."""
    grace = times.drain_grace if wish.grace is None else wish.grace
    server.lifecycle.draining(refuse_after=times.drain_delay, final=True)
    log.info("service_draining", running=server.calls.count, grace=grace)
    if orderly and server.lifecycle.is_live:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(wish.hurried.wait(), times.drain_delay)
        hurry = asyncio.ensure_future(wish.hurried.wait())
        ended = asyncio.ensure_future(_all_work_ended(server, drain, grace))
        await asyncio.wait((ended, hurry), return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, hurry):
            task.cancel()
        await asyncio.gather(ended, hurry, return_exceptions=True)
    server.lifecycle.stopped()
    await server.stop(0.0)


async def _all_work_ended(
    server: RpcServer, drain: Callable[[float], Awaitable[object]] | None, grace: float
) -> None:
    waits: list[Awaitable[object]] = [server.calls.wait_idle(grace)]
    if drain is not None:
        waits.append(asyncio.wait_for(drain(grace), grace))
    outcomes = await asyncio.gather(*waits, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, TimeoutError):
            log.warning("drain_grace_over", grace=grace)
        elif isinstance(outcome, Exception):
            log.error("drain_failed", exc_info=outcome)


async def _close(close: Callable[[], Awaitable[None]] | None, limit: float) -> None:
    if close is None:
        return
    try:
        await asyncio.wait_for(close(), limit)
    except TimeoutError:
        log.error("service_close_timed_out", limit=limit)
    except Exception:
        log.exception("service_close_failed")


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


@contextlib.contextmanager
def _signals(wish: StopRequest):
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, wish.ask)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _failure(lifecycle: Lifecycle):
    """An event that is set once the lifecycle has failed, from whatever thread."""
    loop = asyncio.get_running_loop()
    failed = asyncio.Event()

    def changed(snapshot: LifecycleSnapshot) -> None:
        if snapshot.state is State.FAILED:
            loop.call_soon_threadsafe(failed.set)

    unsubscribe = lifecycle.subscribe(changed)
    try:
        yield failed
    finally:
        unsubscribe()


def _report(service: str, message: str) -> None:
    name = f"antiphon {service}".rstrip()
    print(f"{name}: cannot start: {' '.join(message.split())}", file=sys.stderr, flush=True)
