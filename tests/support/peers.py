"""Clients whose pins clash with the suite's: installed once, into a folder of their own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "tests" / "clients" / "peers"
INSTALL_S = 300
RUN_S = 240


def peer_packages(sources: Path = SOURCES) -> Path:
    """The folder with the packages that ``sources`` pins; installs them the first time."""
    pins = sources / "requirements.txt"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()[:12]
    folder = ROOT / "artifacts" / f"{sources.name}-{digest}"
    if not (folder / ".installed").exists():
        options = ["--no-deps", "--no-compile", "--only-binary", ":all:", "--quiet", "--upgrade"]
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options]
        done = subprocess.run(
            [*command, "--target", str(folder), "-r", str(pins)],
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
        )
        assert done.returncode == 0, done.stderr
        (folder / ".installed").touch()
    return folder


def peer_environment(packages: Path) -> dict[str, str]:
    """The environment in which the peers' packages come before the suite's."""
    return {
        **os.environ,
        "PYTHONPATH": str(packages),
        "OPENAI_API_KEY": "unused",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HF_HUB_OFFLINE": "1",
    }


def run_peer(packages: Path, driver: str, *arguments: str) -> Any:
    """Runs a driver with the peers' packages before the suite's; returns what it printed."""
    done = subprocess.run(
        [sys.executable, str(SOURCES / driver), *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        env=peer_environment(packages),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().rpartition("\n")[2])
