"""The whole suite as a user starts it, for the tests that need it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

READY_TIMEOUT_S = 120.0
PORTS = 9


@dataclass(frozen=True)
class RunningSuite:
    """A suite started by the `antiphon up` command."""

    url: str
    port: int
    pid: int
    run_dir: Path

    def processes(self, module: str) -> list[psutil.Process]:
        """Living processes of the suite that run ``python -m <module>``."""
        return [
            process
            for process in psutil.Process(self.pid).children(recursive=True)
            if module in _command_line(process)
        ]

    def snapshot(self) -> dict:
        """The admin service's view of the fleet, by replica id."""
        body = httpx.get(f"http://127.0.0.1:{self.port + 5}/snapshot").raise_for_status().json()
        return {replica["id"]: replica for replica in body["replicas"]}

    def wait_ready(self, timeout: float = READY_TIMEOUT_S) -> None:
        """Waits until requests are served again."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"{self.url}/health/ready", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise TimeoutError(f"the suite at {self.url} was not ready within {timeout} s")


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def free_port_block(count: int = PORTS) -> int:
    """The first of ``count`` consecutive free ports, away from the default ones.

    Each of pytest's workers searches a range of its own: two at once would both see a block free.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    low = 21000 + worker % 5 * 2200
    for base in range(low, low + 2200 - count, count):
        try:
            for port in range(base, base + count):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise RuntimeError("no block of free ports")


def start_suite(
    run_dir: Path, config: str = "", *arguments: str
) -> tuple[RunningSuite, subprocess.Popen]:
    """Starts `antiphon up` on free ports; does not wait."""
    port = free_port_block()
    run_dir.mkdir(parents=True, exist_ok=True)
    file = run_dir / "suite.toml"
    file.write_text(
        f'[edge]\nrun_dir = "{run_dir}"\ndrain_grace_s = 1.0\n{config}', encoding="utf-8"
    )
    command = [
        *(sys.executable, "-m", "antiphon_cli", "up"),
        *("--config", str(file), "--port", str(port), *arguments),
    ]
    log = (run_dir / "up.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    return RunningSuite(f"http://127.0.0.1:{port}", port, process.pid, run_dir), process


def stop_suite(process: subprocess.Popen) -> int:
    """Ctrl-C, as a user would; returns the exit status."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(30)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        raise
