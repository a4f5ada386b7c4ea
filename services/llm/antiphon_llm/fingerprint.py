"""What decides a model's token ids, as a digest that front and engine each take of its files.

Both processes open the files by themselves, the engine again after each restart: equal digests
say that the ids of one are the ids of the other. Imports nothing of either side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FILES = ("tokenizer.json", "tokenizer_config.json")


def of_metadata(metadata: Mapping[str, Any]) -> str:
    """64 hex digits of a GGUF file's tokenizer."""
    digest = hashlib.sha256()
    for key in sorted(metadata):
        if key.startswith("tokenizer.ggml."):
            digest.update(f"{key}\0".encode())
            digest.update(_canonical(metadata[key]))
    return digest.hexdigest()


def of_directory(directory: Path) -> str:
    """64 hex digits of a checkpoint directory's tokenizer files; empty where it has none."""
    digest = hashlib.sha256()
    found = [directory / name for name in _FILES if (directory / name).is_file()]
    for path in found:
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest() if found else ""


def _canonical(value: Any) -> bytes:
    """Bytes that are equal for equal metadata values."""
    if isinstance(value, list):
        return "\0".join(map(str, value)).encode()
    return value.tobytes() if hasattr(value, "tobytes") else str(value).encode()
