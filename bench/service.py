"""Services as processes of their own, for measurements and for tests of the real thing."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import grpc
import psutil
from antiphon.admin.v1 import node_pb2
from antiphon.admin.v1.node_pb2_grpc import NodeAdminServiceStub
from antiphon.llm.v1.llm_service_pb2_grpc import LlmServiceStub
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.streams import result
from prometheus_client.openmetrics.parser import text_string_to_metric_families

BOOT_S = 120.0
STOP_S = 30.0
_POLL_S = 0.05
_PORT = r'"port":(\d+)'


@dataclass
class LlmService:
    """A running ``python -m antiphon_llm`` and a channel to it."""

    process: asyncio.subprocess.Process
    log: Path
    address: str
    channel: grpc.aio.Channel

    @property
    def stub(self) -> Any:
        """Calls of LlmService."""
        return LlmServiceStub(self.channel)

    @property
    def node(self) -> Any:
        """Calls of NodeAdminService."""
        return NodeAdminServiceStub(self.channel)

    async def status(self) -> node_pb2.NodeStatus:
        """State and gauges now."""
        reply = await result(self.node.GetSnapshot(node_pb2.GetSnapshotRequest()))
        return reply.status

    async def metrics(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Every sample by name and sorted labels."""
        reply = await result(self.node.GetMetrics(node_pb2.GetMetricsRequest()))
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(reply.text.decode())
            for sample in family.samples
        }

    async def busy(self, seconds: float = 30.0) -> None:
        """Waits until a request has a row.

        Raises:
            TimeoutError: none has.
        """
        for _ in range(int(seconds / _POLL_S)):
            if (await self.status()).running:
                return
            await asyncio.sleep(_POLL_S)
        raise TimeoutError(f"nothing ran within {seconds:g} s")

    async def idle(self, seconds: float = 30.0) -> node_pb2.NodeStatus:
        """The status once nothing runs, waits or holds an entry.

        Raises:
            TimeoutError: something still does; names it.
        """
        status = await self.status()
        for _ in range(int(seconds / _POLL_S)):
            if not (status.running or status.waiting or status.kv_entries_used):
                return status
            await asyncio.sleep(_POLL_S)
            status = await self.status()
        raise TimeoutError(
            f"after {seconds:g} s {status.running} run, {status.waiting} wait and "
            f"{status.kv_entries_used} entries are held"
        )

    def resident_bytes(self) -> int:
        """Resident memory of the front and of its engine process."""
        front = psutil.Process(self.process.pid)
        return sum(one.memory_info().rss for one in (front, *front.children(recursive=True)))

    def find(self, pattern: str) -> str | None:
        """The last match of a pattern with one group in the log."""
        return _last(self.log, pattern)


@asynccontextmanager
async def llm_service(run_dir: Path, *flags: str) -> AsyncIterator[LlmService]:
    """Starts the service on a free port, waits until it is ready and stops it after the block.

    Args:
        run_dir: for its log, which outlives it.
        flags: command-line settings, such as ``--max-rows 32``.

    Raises:
        RuntimeError: it did not become ready; with the end of its log.
    """
    async with service_process("antiphon_llm", run_dir / "llm.log", *flags) as (process, address):
        channel = open_channel(address)
        try:
            yield LlmService(process, run_dir / "llm.log", address, channel)
        finally:
            await channel.close()


@asynccontextmanager
async def service_process(
    module: str, log: Path, *flags: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Runs ``python -m module`` on a free port: the ready process and its address.

    Raises:
        RuntimeError: it did not become ready; with the end of its log.
    """
    with _opened(log) as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", module, "--bind", "127.0.0.1:0", *flags),
            stdout=output,
            stderr=output,
        )
    try:
        await _wait_for(process, log, r'"event":"(service_ready)"')
        yield process, f"127.0.0.1:{_last(log, _PORT)}"
    finally:
        await _stop(process)


async def _wait_for(process: asyncio.subprocess.Process, log: Path, pattern: str) -> None:
    for _ in range(int(BOOT_S / _POLL_S)):
        if _last(log, pattern) is not None:
            return
        if process.returncode is not None:
            break
        await asyncio.sleep(_POLL_S)
    raise RuntimeError(f"the service did not start: {_text(log)[-2000:]}")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Two signals: the second ends what the first would wait for."""
    for _ in range(2):
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise


def _opened(log: Path) -> BinaryIO:
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("wb")


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _last(log: Path, pattern: str) -> str | None:
    found = re.findall(pattern, _text(log))
    return found[-1] if found else None
