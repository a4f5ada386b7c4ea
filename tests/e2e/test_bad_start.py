"""Starts that must fail do so at once, saying what is wrong and how to put it right."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.suite import free_port_block, start_suite

pytestmark = pytest.mark.real


def run_service(module: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=90
    )


def test_a_port_in_use_is_named_before_anything_starts(tmp_path: Path):
    with socket.socket() as holder:
        base = free_port_block()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", base))
        holder.listen()
        command = [sys.executable, "-m", "antiphon_cli", "up", "--port", str(base)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert done.returncode == 1
    assert str(base) in done.stderr and "--port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["llm", "vocoder", "gateway", "admin"])
def test_a_service_names_an_unknown_setting(name: str):
    done = run_service(f"antiphon_{name}", "--no-such-setting", "1")
    assert done.returncode == 71
    assert "no_such_setting" in done.stderr.replace("-", "_")
    assert "Traceback" not in done.stderr


def test_a_text_file_is_not_a_model(tmp_path: Path):
    path = tmp_path / "model.gguf"
    path.write_text("this is a text file and not a GGUF file\n" * 10)
    done = run_service("antiphon_llm", "--bind", "127.0.0.1:0", "--model", str(path))
    assert done.returncode != 0
    assert "model.gguf" in done.stderr
    assert "GGUF" in done.stderr
    assert "Traceback" not in done.stderr.splitlines()[-1]


def test_a_missing_model_is_named_with_the_known_ones(tmp_path: Path):
    done = run_service(
        "antiphon_llm", "--bind", "127.0.0.1:0", "--model", str(tmp_path / "nowhere.gguf")
    )
    assert done.returncode != 0
    assert "nowhere.gguf" in done.stderr


def test_a_broken_model_ends_the_suite_with_the_reason(tmp_path: Path):
    path = tmp_path / "model.gguf"
    path.write_text("not a model")
    _, process = start_suite(tmp_path / "run", "", "--llm-model", str(path))
    assert process.wait(60) == 1
    output = (tmp_path / "run" / "up.log").read_text()
    assert "llm" in output and "model.gguf" in output
