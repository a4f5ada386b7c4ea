"""A directory with ``config.json`` and safetensors, single or sharded, as a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from antiphon_kernels.quant_linear import PackedWeight, pack
from safetensors import SafetensorError, safe_open

from antiphon_nn.checkpoint import Checkpoint
from antiphon_nn.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32)


class SafetensorsCheckpoint(Checkpoint):
    """Weights stay in the file's dtype: bf16 and fp16 matrices are packed as they are."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.config: dict[str, Any] = _read_json(path / "config.json")
        if self.config.get("quantization_config"):
            method = self.config["quantization_config"].get("quant_method")
            raise CheckpointError(
                path / "config.json",
                f"quantization_config.quant_method is {method!r}; supported are none, or a GGUF",
            )
        self._files: dict[str, Any] = {}
        self._sources = self._locate()
        self._names = frozenset(self._sources)

    def names(self) -> frozenset[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._sources[name].get_slice(name).get_shape())

    def _tensor(self, name: str) -> torch.Tensor:
        return self._load(name).float()

    def _linear(self, name: str) -> PackedWeight:
        return pack(self._load(name))

    def _some_rows(self, name: str, indices: Sequence[int]) -> torch.Tensor:
        rows = self._sources[name].get_slice(name)
        return torch.cat([rows[index : index + 1] for index in indices]).float()

    def _integers(self, name: str) -> torch.Tensor:
        tensor = self._sources[name].get_tensor(name)
        if tensor.dtype not in INTEGERS:
            raise CheckpointError(
                self.path,
                f"tensor {name!r} has dtype {tensor.dtype}, "
                f"supported here are {', '.join(map(str, INTEGERS))}",
            )
        return tensor.long()

    def _load(self, name: str) -> torch.Tensor:
        tensor = self._sources[name].get_tensor(name)
        if tensor.dtype not in FLOATS:
            raise CheckpointError(
                self.path,
                f"tensor {name!r} has dtype {tensor.dtype}, "
                f"supported are {', '.join(map(str, FLOATS))}",
            )
        return tensor

    def _locate(self) -> dict[str, Any]:
        if (self.path / INDEX).exists():
            return self._locate_shards()
        if not (self.path / SINGLE).exists():
            pickles = sorted(p.name for suffix in ("bin", "pt", "pth")
                             for p in self.path.glob(f"*.{suffix}"))  # fmt: skip
            hint = (
                f"; {pickles[0]} is a pickle, which is never loaded: convert it with transformers' "
                "save_pretrained(..., safe_serialization=True)"
                if pickles
                else ""
            )
            raise CheckpointError(self.path, f"has neither {SINGLE} nor {INDEX}{hint}")
        handle = self._open(SINGLE)
        return dict.fromkeys(handle.keys(), handle)

    def _locate_shards(self) -> dict[str, Any]:
        index = _read_json(self.path / INDEX).get("weight_map")
        if not isinstance(index, dict) or not index:
            raise CheckpointError(self.path / INDEX, "has no weight_map")
        shards = sorted(set(index.values()))
        for shard in shards:
            if Path(shard).name != shard:
                raise CheckpointError(self.path / INDEX, f"names a file elsewhere: {shard!r}")
        missing = [shard for shard in shards if not (self.path / shard).exists()]
        if missing:
            raise CheckpointError(self.path, f"shards are missing: {', '.join(missing[:20])}")
        sources: dict[str, Any] = {}
        for shard in shards:
            handle = self._open(shard)
            for name in handle.keys():  # noqa: SIM118 - safe_open is no mapping
                if name in sources:
                    raise CheckpointError(self.path / shard, f"repeats tensor {name!r}")
                sources[name] = handle
        absent = sorted(name for name, shard in index.items()
                        if sources.get(name) is not self._files[shard])  # fmt: skip
        if absent:
            raise CheckpointError(
                self.path / INDEX, f"places tensors where they are not: {', '.join(absent[:20])}"
            )
        return sources

    def _open(self, name: str) -> Any:
        path = self.path / name
        try:
            handle = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(path, f"is no valid safetensors file: {error}") from error
        self._files[name] = handle
        return handle


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(path, f"is no valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(path, "is no JSON object")
    return value
