"""The model's own draw settings, used where a request leaves them open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from antiphon_llm.front.errors import ModelSourceError
from antiphon_llm.front.tokenizer import read_json


@dataclass(frozen=True)
class SamplingDefaults:
    """Values for omitted fields; the class's own are those of a model that names none."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


_GGUF_KEYS: Mapping[str, str] = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def from_directory(directory: Path) -> SamplingDefaults:
    """Reads ``generation_config.json``; absent fields keep the neutral value.

    Raises:
        ModelSourceError: a value is no number.
    """
    path = directory / "generation_config.json"
    document = read_json(path)
    names = [field.name for field in fields(SamplingDefaults)]
    return _from_values({name: document.get(name) for name in names}, str(path))


def from_gguf(
    metadata: Mapping[str, Any], published: Mapping[str, float] | None = None
) -> SamplingDefaults:
    """Reads the sampling keys of a GGUF file's metadata.

    Args:
        published: values by field name that hold where the file has none.

    Raises:
        ModelSourceError: a value is no number.
    """
    found = dict(published or {})
    found |= {name: metadata[key] for key, name in _GGUF_KEYS.items() if key in metadata}
    return _from_values(found, "the GGUF metadata")


def _from_values(values: Mapping[str, Any], origin: str) -> SamplingDefaults:
    chosen: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelSourceError(f"{origin}: {name} is {value!r}, expected a number")
        chosen[name] = int(value) if name == "top_k" else float(value)
    return SamplingDefaults(**chosen)
