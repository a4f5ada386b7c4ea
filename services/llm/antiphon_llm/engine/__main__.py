"""The engine process; the front starts it as ``python -m antiphon_llm.engine``."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from antiphon_core import collector
from antiphon_core.ipc.endpoint import Endpoint, WorkerEndpoint
from antiphon_core.logs import configure_logging, get_logger

from antiphon_llm.messages import Boot, Fault, Shutdown, ToEngine

if TYPE_CHECKING:
    from .loop import EngineLoop
    from .teardown import Owners

EXIT_FAULT = 70
"""Exit status after a Fault."""


def serve(endpoint: Endpoint) -> int:
    """Boots on the first message and steps until Shutdown; returns the exit status.

    Whatever fails is told to the front as a Fault before this returns.
    """
    log = get_logger(__name__)
    config = _await_boot(endpoint)
    if config is None:
        return 0
    # Imported here, so that the front hears of the process before torch is loaded.
    from .boot import BootPhases, boot

    phases = BootPhases(endpoint)
    try:
        loop = boot(config.config, endpoint, phases, config.vocabulary, config.score_ids)
    except (ValueError, MemoryError) as refused:
        log.error("boot_refused", phase=phases.current, error=str(refused))
        endpoint.send(Fault(str(refused), "BOOT_FAILED", phases.current))
        return EXIT_FAULT
    except Exception as defect:
        log.exception("boot_failed", phase=phases.current)
        endpoint.send(Fault(f"{type(defect).__name__}: {defect}", "BOOT_FAILED", phases.current))
        return EXIT_FAULT
    _quieten_collector()
    status = _run(loop)
    owners = loop.owners
    del loop
    return _tear_down(owners) or status


def _quieten_collector() -> None:
    """Keeps full garbage collections out of steps: one walks every queued prompt, which takes 20
    to 110 ms with 2000 of them. The loop collects when it has been idle for a while."""
    collector.settle()
    young, middle, full = 10_000, 10, 1_000
    gc.set_threshold(young, middle, full)


def _run(loop: EngineLoop) -> int:
    """Steps until Shutdown or SIGTERM; either ends every request with a terminal."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: loop.stop())
    try:
        loop.run()
    except Exception:
        return EXIT_FAULT
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return 0


def _tear_down(owners: Owners) -> int:
    """Lets everything go, and says what would not; returns the exit status."""
    try:
        owners.release()
    except Exception:
        return EXIT_FAULT
    finally:
        get_logger(__name__).info("engine_released", unowned=owners.sweep())
    return 0


def _await_boot(endpoint: Endpoint) -> Boot | None:
    """The first message; None when it is a Shutdown."""
    while True:
        endpoint.wait(None)
        for message in endpoint.drain():
            if isinstance(message, Boot):
                return message
            if isinstance(message, Shutdown):
                return None
            raise TypeError(f"the first message must be Boot, not {type(message).__name__}")


def main() -> int:
    """Connects to the front and serves it."""
    endpoint = WorkerEndpoint.from_argv(sys.argv[1:], inbound=ToEngine)
    configure_logging("llm-engine")
    try:
        status = serve(endpoint)
    finally:
        endpoint.close()
    from antiphon_llm.structured.compile_pool import COMPILE_THREAD

    if any(thread.name.startswith(COMPILE_THREAD) for thread in threading.enumerate()):
        # A compile cannot be interrupted, and the interpreter's own end would wait for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
