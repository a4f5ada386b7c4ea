"""The light members install and serve alone, without torch."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.suite import free_port_block

ROOT = Path(__file__).resolve().parents[2]
LIGHT = ("gateway", "admin")
HEAVY = ("torch", "triton", "transformers", "onnxruntime")

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


def install(directory: Path, *members: str) -> Path:
    """A fresh virtual environment of some members; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    python = directory / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile"]
    pins = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *pins, "hatchling", "editables"], check=True)
    targets = [str(ROOT / member) for member in members]
    subprocess.run([*pip, *pins, "--no-build-isolation", *targets], check=True)
    return python


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the light members and what they ask for."""
    members = ("protos", "libs/core", *(f"services/{name}" for name in LIGHT))
    return install(tmp_path_factory.mktemp("light") / "venv", *members)


@pytest.fixture
def served(request: pytest.FixtureRequest, python: Path, tmp_path: Path) -> Iterator[str]:
    """The member named by the parameter, serving; its health URL."""
    name, arguments, port_offset = request.param
    base = free_port_block()
    command = [str(python), "-m", f"antiphon_{name}"]
    command += [argument.format(*range(base, base + 4)) for argument in arguments]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{base + port_offset}/health"
    finally:
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    "served",
    [
        (
            "gateway",
            ["--port", "{0}", "--node-bind", "127.0.0.1:{1}", "--drain-notice-seconds", "0"],
            0,
        ),
        ("admin", ["--bind", "127.0.0.1:{0}", "--http-bind", "127.0.0.1:{1}"], 1),
    ],
    ids=["gateway", "admin"],
    indirect=True,
)
def test_a_light_member_serves_alone_without_torch(served: str, python: Path) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            assert httpx.get(served).status_code == 200
            break
        except httpx.HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    listed = subprocess.run(
        [str(python), "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True
    ).stdout.lower()
    assert not [package for package in HEAVY if f"{package}==" in listed]
