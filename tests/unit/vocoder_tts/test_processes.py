"""What each process loads, and how the service refuses to start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HEAVY = ("onnxruntime", "onnx", "espeakng_loader", "torch", "ctranslate2", "faster_whisper")


def loaded_by(module: str) -> list[str]:
    code = f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.replace("'", '"'))


def test_the_front_loads_no_model_library() -> None:
    assert loaded_by("antiphon_vocoder.servicer") == []


def test_the_phonemizer_loads_espeak_only() -> None:
    assert loaded_by("antiphon_vocoder.text.worker") == ["espeakng_loader"]


def refusal(*flags: str) -> str:
    command = [sys.executable, "-m", "antiphon_vocoder", "--bind", "127.0.0.1:0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 71
    return next(line for line in done.stderr.splitlines() if line.startswith("antiphon"))


def test_a_missing_directory_is_one_line_and_status_71(tmp_path: Path) -> None:
    line = refusal("--voices-dir", str(tmp_path / "none"))
    assert "voices_dir" in line
    assert "not a directory" in line


def test_an_unknown_default_voice_names_the_known_ones() -> None:
    assert "default_voice 'nobody'" in refusal("--default-voice", "nobody")
