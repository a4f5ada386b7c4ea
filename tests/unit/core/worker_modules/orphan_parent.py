"""Starts an echo worker, prints its pid and waits to be killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from antiphon_core.ipc.worker import WorkerProcess
from echo_messages import FromWorker, Start, Up


async def main() -> None:
    up: asyncio.Future[Up] = asyncio.get_running_loop().create_future()
    worker = WorkerProcess(
        name="echo",
        module="echo_worker",
        inbound=FromWorker,
        on_message=up.set_result,
        on_exit=lambda _: None,
        environment={"PYTHONPATH": str(Path(__file__).parent)},
        start_message=Start("orphan"),
    )
    await worker.start()
    print((await up).pid, flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
