"""A GGUF file, or a set of split files, as a checkpoint in Hugging Face vocabulary."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from antiphon_kernels.quant_linear import PackedWeight, dequantise, pack

from antiphon_nn.checkpoint import Checkpoint
from antiphon_nn.errors import CheckpointError
from antiphon_nn.gguf_file import GgufFile
from antiphon_nn.gguf_names import ROPE_FACTORS, config_of, family_of, hugging_face_name

_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


class GgufCheckpoint(Checkpoint):
    """A GGUF checkpoint; ``metadata`` are the keys of its first file, tokenizer included."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        files = _open_parts(path)
        self.metadata = files[0].metadata
        self._family = family_of(files[0])
        self._sources: dict[str, tuple[GgufFile, str]] = {}
        unknown: list[str] = []
        for file in files:
            for source in file.tensors:
                name = hugging_face_name(self._family, source)
                if name is not None:
                    self._sources[name] = (file, source)
                elif source != ROPE_FACTORS:
                    unknown.append(source)
        if unknown:
            raise CheckpointError(
                path,
                f"{len(unknown)} tensors are unknown to {self._family.architecture}: "
                + ", ".join(unknown[:20]),
            )
        self._names = frozenset(self._sources)
        self.config: dict[str, Any] = config_of(files[0], self._family)

    def names(self) -> frozenset[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        file, source = self._sources[name]
        return file.tensors[source].shape

    def _tensor(self, name: str) -> torch.Tensor:
        file, source = self._sources[name]
        info = file.tensors[source]
        if info.kind == "F32":
            values = self._rows(name).view(torch.float32).reshape(info.shape).clone()
        else:
            values = dequantise(pack(self._rows(name), info.kind, (info.rows, info.shape[-1])))
            values = values.reshape(info.shape)
        if self._family.norms_plus_one and name.endswith("norm.weight"):
            return values - 1.0
        return values

    def _linear(self, name: str) -> PackedWeight:
        file, source = self._sources[name]
        info = file.tensors[source]
        return pack(self._rows(name), info.kind, (info.rows, info.shape[-1]))

    def _rows(self, name: str) -> torch.Tensor:
        """The tensor's bytes (rows, bytes per row), q and k rows in half-rotation order.

        llama.cpp interleaves the two halves of every head of the Llama lineage. Blocks run
        along a row, so undoing it moves whole rows of bytes.
        """
        file, source = self._sources[name]
        data = torch.from_numpy(file.data(source))
        if not self._family.permuted_rope:
            return data
        if ".q_proj." in name:
            heads = self.config["num_attention_heads"]
        elif ".k_proj." in name:
            heads = self.config["num_key_value_heads"]
        else:
            return data
        if name.endswith(".bias"):
            data = data.reshape(-1, 4)
        return data.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(data.shape)


def _open_parts(path: Path) -> list[GgufFile]:
    first = GgufFile(path)
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return [first]
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        raise CheckpointError(
            path, f"is one of {count} split files, but not named NAME-00001-of-{count:05}.gguf"
        )
    paths = [
        path.with_name(f"{match[1]}-{index:05}-of-{match[3]}.gguf") for index in range(1, count + 1)
    ]
    missing = [part.name for part in paths if not part.exists()]
    if missing:
        raise CheckpointError(path, f"split files are missing: {', '.join(missing)}")
    files = [GgufFile(part) for part in paths]
    expected = files[0].metadata.get("split.tensors.count")
    found = sum(len(file.tensors) for file in files)
    if expected is not None and expected != found:
        raise CheckpointError(path, f"split files hold {found} tensors, expected {expected}")
    return files
