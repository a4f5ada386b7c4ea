"""`antiphon cache flush`, `sleep` and `wake` as processes against a NodeAdminService."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
from antiphon_core.errors import FailedPrecondition
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.node import Flushed, NodeAdminServicer, ServerInfo
from antiphon_core.rpc.server import RpcServer


class Service:
    """What the commands reach; ``asked`` is what they asked for."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.node = NodeAdminServicer(
            Lifecycle(),
            lambda: ServerInfo(service="llm", version="1"),
            flush_prefix_cache=self._flush,
            sleep=self._sleep,
            wake=self._wake,
        )

    async def _flush(self, tenant: str | None) -> Flushed:
        self.asked.append(("flush", tenant))
        return Flushed(12, 3 << 20)

    async def _sleep(self, timeout: float | None) -> int:
        self.asked.append(("sleep", timeout))
        if timeout == 0:
            raise FailedPrecondition("requests still run")
        return 1 << 20

    async def _wake(self) -> None:
        self.asked.append("wake")


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    server = RpcServer(service="llm", bind="127.0.0.1:0", lifecycle=Lifecycle(), node=made.node)
    made.target = f"127.0.0.1:{await server.start()}"
    yield made
    await server.stop(0.0)


async def antiphon(*arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of one command."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "antiphon_cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    return process.returncode or 0, output.decode().strip(), errors.decode().strip()


@pytest.mark.parametrize(
    ("arguments", "asked", "told"),
    [
        (("cache", "flush"), ("flush", None), "12 entries are free (3.0 MiB)"),
        (("cache", "flush", "--tenant", "b"), ("flush", "b"), "12 entries are free (3.0 MiB)"),
        (("cache", "flush", "--tenant", ""), ("flush", ""), "12 entries are free (3.0 MiB)"),
        (("sleep",), ("sleep", None), "asleep; 1.0 MiB given back"),
        (("sleep", "--timeout", "2.5"), ("sleep", 2.5), "asleep; 1.0 MiB given back"),
        (("wake",), "wake", "awake"),
    ],
)
async def test_a_command_asks_and_tells(
    service: Service, arguments: tuple[str, ...], asked: object, told: str
) -> None:
    code, output, errors = await antiphon(*arguments, "--llm", service.target)
    assert (code, output, service.asked) == (0, told, [asked]), errors


async def test_a_refusal_is_one_line_and_a_failure(service: Service) -> None:
    code, output, errors = await antiphon("sleep", "--timeout", "0", "--llm", service.target)
    assert (code, output, errors) == (1, "", "error: requests still run")


async def test_nobody_there_is_one_line_and_a_failure() -> None:
    code, output, errors = await antiphon("wake", "--llm", "127.0.0.1:1")
    assert (code, output) == (1, "")
    assert errors.startswith("error: ") and "127.0.0.1:1" in errors and "\n" not in errors
