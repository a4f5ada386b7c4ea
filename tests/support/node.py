"""The openai package for node, installed once from its lock file."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "tests" / "clients" / "node"
INSTALL_S = 240
RUN_S = 240


def node_client() -> Path:
    """The folder with the client's packages and drivers; installs them the first time.

    Skips where node or npm is missing; an installation that fails is a failure.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    lock = (SOURCES / "package-lock.json").read_bytes()
    folder = ROOT / "artifacts" / f"node-{hashlib.sha256(lock).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    for file in SOURCES.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    if not (folder / ".installed").exists():
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S
        )
        assert done.returncode == 0, done.stderr
        (folder / ".installed").touch()
    return folder


def run_driver(folder: Path, url: str, *scenarios: str, driver: str = "driver.mjs") -> Any:
    """Runs scenarios against a server; returns what each saw."""
    done = subprocess.run(
        ["node", driver, f"{url}/v1", *scenarios],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
