"""Children of a process whose gRPC threads are busy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from antiphon_core.ipc.child_process import ChildProcess

CHILDREN = 150

SPAWN = f"""
import asyncio
import os

import grpc
import uvloop
from antiphon_core.ipc.child_process import ChildProcess


async def calls(channel, stopped):
    while not stopped.is_set():
        try:
            await channel.unary_unary("/none/None")(b"")
        except grpc.aio.AioRpcError:
            pass


async def main():
    server = grpc.aio.server()
    address = f"127.0.0.1:{{server.add_insecure_port('127.0.0.1:0')}}"
    await server.start()
    stopped = asyncio.Event()
    async with grpc.aio.insecure_channel(address) as channel:
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(calls(channel, stopped))
            statuses = []
            for _ in range({CHILDREN}):
                child = ChildProcess(["sh", "-c", "exit 7"], os.environ)
                statuses.append(await child.wait())
            stopped.set()
    await server.stop(None)
    print(statuses.count(7))


uvloop.run(main())
"""


def test_children_start_while_grpc_is_busy() -> None:
    found = subprocess.run(
        [sys.executable, "-c", SPAWN], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.stdout.split() == [str(CHILDREN)], found.stderr[-2000:]
    assert "fork" not in found.stderr


async def test_a_child_shares_the_cores_with_its_parent_and_not_its_interrupts() -> None:
    """Linux shares cores out among sessions; a Ctrl-C goes to a process group."""
    # Outlives the checks, and is killed behind them.
    child = ChildProcess(["sleep", "60"], os.environ)
    try:
        assert os.getsid(child.pid) == os.getsid(0)
        assert os.getpgid(child.pid) != os.getpgid(0)
    finally:
        child.send_signal(signal.SIGKILL)
        await child.wait()
