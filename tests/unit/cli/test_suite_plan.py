"""The port plan, the refusal of taken ports and the supervision of a service process."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest
import uvloop
from antiphon_cli.suite.plan import LOOPBACK, Ports, check_ports, service_plans
from antiphon_cli.suite.process import ServiceProcess
from antiphon_cli.suite.settings import EdgeSettings
from antiphon_core.errors import FailedPrecondition


def free_block() -> int:
    """The first port of nine free ones."""
    for base in range(20000, 60000, 9):
        try:
            check_ports(LOOPBACK, Ports(base))
        except FailedPrecondition:
            continue
        return base
    raise AssertionError("no free ports")


def test_a_taken_port_is_named_with_the_cure():
    base = free_block()
    with socket.socket() as holder:
        holder.bind((LOOPBACK, base + 3))
        holder.listen()
        with pytest.raises(FailedPrecondition, match=rf"{base + 3} \(vocoder\).*--port"):
            check_ports(LOOPBACK, Ports(base))
    check_ports(LOOPBACK, Ports(base))


def test_ports_are_distinct_and_consecutive():
    numbers = sorted(Ports(9000).named().values())
    assert numbers == list(range(9000, 9009))


@pytest.mark.parametrize("egress", [False, True])
def test_the_gateway_dials_the_services_or_the_egress_listener(egress: bool, tmp_path: Path):
    settings = EdgeSettings(port=9000, egress=egress)
    file = tmp_path / "suite.toml"
    file.write_text("[edge]\nport = 9000\n")
    plans = {p.name: p for p in service_plans(Ports(9000), settings, file, {})}
    command = plans["gateway"].command
    assert command[command.index("--llm-targets") + 1] == f"{LOOPBACK}:9002"
    assert ("--egress-target" in command) is egress
    if egress:
        assert command[command.index("--egress-target") + 1] == f"{LOOPBACK}:9008"
    assert plans["llm"].command[3:5] == ("--config", str(file))


def test_the_gateway_has_a_store_of_the_suite_unless_one_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def command(settings: EdgeSettings, file: Path | None = None) -> tuple[str, ...]:
        plans = service_plans(Ports(9000), settings, file, {})
        return next(plan.command for plan in plans if plan.name == "gateway")

    own = command(EdgeSettings(run_dir=tmp_path))
    assert own[own.index("--store.directory") + 1] == str(tmp_path / "store")
    other = command(EdgeSettings(store_dir=tmp_path / "other"))
    assert other[other.index("--store.directory") + 1] == str(tmp_path / "other")
    file = tmp_path / "suite.toml"
    file.write_text('[gateway.store]\ndirectory = "elsewhere"\n')
    assert "--store.directory" not in command(EdgeSettings(), file)
    monkeypatch.setenv("ANTIPHON_GATEWAY_STORE__DIRECTORY", "elsewhere")
    assert "--store.directory" not in command(EdgeSettings())


async def run_until(condition, timeout: float = 10.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_dying_process_is_restarted_until_the_budget_is_spent(tmp_path: Path):
    exits: list[tuple[int, bool]] = []
    process = ServiceProcess(
        "dying",
        [sys.executable, "-c", "import sys; print('hello'); sys.exit(3)"],
        tmp_path / "dying.log",
        restart_limit=2,
        on_exit=lambda name, code, restart: exits.append((code, restart)),
    )
    await process.start()
    await run_until(lambda: len(exits) == 3)
    assert exits == [(3, True), (3, True), (3, False)]
    assert process.log_tail().count("hello") == 3
    await process.stop(1.0)


async def test_a_refused_configuration_is_not_tried_again(tmp_path: Path):
    exits: list[tuple[int, bool]] = []
    process = ServiceProcess(
        "refusing",
        [sys.executable, "-c", "import sys; sys.exit(71)"],
        tmp_path / "refusing.log",
        restart_limit=3,
        on_exit=lambda name, code, restart: exits.append((code, restart)),
    )
    await process.start()
    await run_until(lambda: bool(exits))
    assert exits == [(71, False)]
    await process.stop(1.0)


async def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path):
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('up', flush=True); time.sleep(60)"
    )
    process = ServiceProcess(
        "stubborn",
        [sys.executable, "-c", code],
        tmp_path / "stubborn.log",
        restart_limit=3,
        on_exit=lambda *_: pytest.fail("a stop is not a death"),
    )
    await process.start()
    await run_until(lambda: "up" in process.log_tail())
    await process.stop(0.2)
    assert process.pid is None


def test_a_process_shares_the_cores_with_the_suite_and_not_its_interrupts(tmp_path: Path):
    async def started() -> None:
        process = ServiceProcess(
            "quiet",
            # Outlives the checks; stop ends it.
            [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"],
            tmp_path / "quiet.log",
            restart_limit=0,
            on_exit=lambda *_: pytest.fail("a stop is not a death"),
        )
        await process.start()
        try:
            await run_until(lambda: "up" in process.log_tail())
            assert process.pid is not None
            assert os.getsid(process.pid) == os.getsid(0)
            assert os.getpgid(process.pid) == process.pid
        finally:
            await process.stop(1.0)

    # The benches run a suite on this loop, which takes fewer options for a child than asyncio's.
    uvloop.run(started())
