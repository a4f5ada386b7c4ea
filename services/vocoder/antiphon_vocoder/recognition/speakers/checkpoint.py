"""Reads the tensors of a torch checkpoint in the format before 1.6, without torch.

The recogniser's process has no other use for torch, whose import costs it 180 MiB and seconds.
Such a file is five pickles (magic number, protocol, system, the saved object, storage keys) and
then each storage's element count and bytes; tensors refer to storages by persistent ids.
"""

from __future__ import annotations

import pickle
import struct
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_MAGIC = 0x1950A86A20F9469CFC6C
_FLOAT = np.dtype("<f4")


class UnreadableCheckpoint(Exception):
    """The file is no such checkpoint, or holds what is not read."""


@dataclass(frozen=True)
class _Storage:
    key: str


@dataclass(frozen=True)
class _Tensor:
    """Where a tensor's elements are, in elements of its storage."""

    storage: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _FloatStorage:
    """Stands for torch.FloatStorage."""


def read_tensors(path: Path, section: str) -> dict[str, NDArray[np.float32]]:
    """The float32 tensors of one mapping of the saved object.

    Args:
        path: the file.
        section: key of the mapping, such as ``model_state``.

    Raises:
        UnreadableCheckpoint: another format or content.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        try:
            if _Unpickler(file).load() != _MAGIC:
                raise UnreadableCheckpoint(f"{path.name} is no torch checkpoint of this format")
            for _ in ("protocol", "system"):
                _Unpickler(file).load()
            saved = _Unpickler(file).load()
            storages = _read_storages(file, _Unpickler(file).load())
            found = saved[section]
            return {name: _values(tensor, storages) for name, tensor in found.items()}
        except (pickle.UnpicklingError, struct.error) as error:
            raise UnreadableCheckpoint(f"{path.name}: {error}") from error
        except (AttributeError, EOFError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UnreadableCheckpoint(f"{path.name}: {error!r}") from error


class _Unpickler(pickle.Unpickler):
    """Builds containers and descriptions of tensors, and nothing else that a pickle may name."""

    def find_class(self, module: str, name: str) -> Any:
        allowed: Mapping[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch", "FloatStorage"): _FloatStorage,
            ("torch._utils", "_rebuild_tensor_v2"): _described,
        }
        try:
            return allowed[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it holds {module}.{name}") from None

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage_type, key, *_ = pid
        if kind != "storage" or storage_type is not _FloatStorage:
            raise pickle.UnpicklingError(f"it refers to {kind} {storage_type}")
        return _Storage(key)


def _described(
    storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: object
) -> _Tensor:
    return _Tensor(storage.key, offset, shape, strides)


def _read_storages(file: IO[bytes], keys: list[str]) -> dict[str, NDArray[np.float32]]:
    storages = {}
    for key in keys:
        (count,) = struct.unpack("<q", file.read(8))
        data = file.read(count * _FLOAT.itemsize)
        storages[key] = np.frombuffer(data, _FLOAT, count)
    return storages


def _values(tensor: _Tensor, storages: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    """A copy, so that the storages of other sections are freed."""
    flat = storages[tensor.storage][tensor.offset :]
    needed = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True)
    )
    if needed > len(flat) or min(tensor.strides, default=0) < 0:
        raise ValueError("a tensor reaches past its storage")
    strides = tuple(stride * _FLOAT.itemsize for stride in tensor.strides)
    return np.lib.stride_tricks.as_strided(flat, tensor.shape, strides).copy()
