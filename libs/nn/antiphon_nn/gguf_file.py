"""A strict GGUF reader without torch: metadata, tensor table and raw tensor bytes.

Every length and count is checked against the file's size before anything is allocated, so a
truncated, foreign or hostile file ends in a :class:`CheckpointError` and nothing else.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np

from antiphon_nn.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
MAX_ARRAY_DEPTH = 4
MAX_NAME_BYTES = 65535

MetadataValue: TypeAlias = "int | float | bool | str | list | np.ndarray"
"""Arrays of numbers are numpy arrays, arrays of strings or arrays are lists."""


@dataclass(frozen=True)
class TensorType:
    """A GGML element type: ``block`` elements take ``block_bytes`` bytes."""

    name: str
    block: int
    block_bytes: int


TENSOR_TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    30: TensorType("BF16", 1, 2),
}
_OTHER_TYPES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip

_SCALARS = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of the file.

    Attributes:
        name: as the file has it.
        shape: row-major, that is (output, input) of a matrix.
        kind: the GGML type's name.
        offset: absolute, in bytes.
        nbytes: size of the data.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    nbytes: int

    @property
    def rows(self) -> int:
        """Product of all dimensions but the last."""
        return math.prod(self.shape[:-1])


class GgufFile:
    """An open GGUF file: ``metadata`` by key, ``tensors`` by name, bytes through :meth:`data`.

    Raises:
        CheckpointError: the file is no GGUF of version 2 or 3, is damaged, or holds a tensor
            of a type that is not supported.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._bytes = _map(self.path)
        reader = _Reader(self.path, self._bytes)
        tensor_count, key_count = self._read_header(reader)
        self.metadata: dict[str, MetadataValue] = {}
        for index in range(key_count):
            key = reader.string(f"key {index} of {key_count}")
            if key in self.metadata:
                reader.fail(f"metadata key {key!r} appears twice")
            self.metadata[key] = reader.value(reader.u32(f"type of {key!r}"), key)
        self.tensors = self._read_tensors(reader, tensor_count)

    def data(self, name: str) -> np.ndarray:
        """The bytes of a tensor as uint8 (rows, bytes per row), a view of the mapped file.

        The mapping is copy-on-write: writing to the view does not change the file.
        """
        info = self.tensors[name]
        flat = np.frombuffer(self._bytes, np.uint8, count=info.nbytes, offset=info.offset)
        return flat.reshape(info.rows, -1)

    def _read_header(self, reader: _Reader) -> tuple[int, int]:
        magic = reader.take(4, "the magic number")
        if magic != MAGIC:
            reader.fail(f"not a GGUF file: starts with {magic!r}, expected {MAGIC!r}")
        self.version = reader.u32("the version")
        if self.version not in VERSIONS:
            swapped = int.from_bytes(struct.pack("<I", self.version), "big") in VERSIONS
            hint = " (a big-endian file)" if swapped else ""
            reader.fail(f"GGUF version {self.version}{hint}, expected 2 or 3 in little-endian")
        tensor_count = reader.u64("the tensor count")
        key_count = reader.u64("the metadata count")
        reader.check_count(tensor_count, 24, "tensor count")
        reader.check_count(key_count, 13, "metadata count")
        return tensor_count, key_count

    def _read_tensors(self, reader: _Reader, count: int) -> dict[str, TensorInfo]:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            reader.fail(f"general.alignment is {alignment!r}, expected a multiple of 8")
        entries = [self._read_entry(reader) for _ in range(count)]
        base = -(-reader.position // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        end, previous = base, ""
        for name, shape, kind, relative, nbytes in sorted(entries, key=lambda entry: entry[3]):
            offset = base + relative
            if name in tensors:
                reader.fail(f"tensor {name!r} appears twice")
            if relative % alignment:
                reader.fail(f"tensor {name!r} starts at {relative}, not aligned to {alignment}")
            if offset < end:
                reader.fail(f"tensors {previous!r} and {name!r} overlap")
            if offset + nbytes > reader.size:
                reader.fail(
                    f"truncated: tensor {name!r} ends at byte {offset + nbytes}, "
                    f"the file has {reader.size}"
                )
            tensors[name] = TensorInfo(name, shape, kind, offset, nbytes)
            end, previous = offset + nbytes, name
        return tensors

    def _read_entry(self, reader: _Reader) -> tuple[str, tuple[int, ...], str, int, int]:
        name = reader.string("a tensor name")
        dims = reader.u32(f"the rank of {name!r}")
        if not 1 <= dims <= MAX_DIMS:
            reader.fail(f"tensor {name!r} has {dims} dimensions, expected 1 to {MAX_DIMS}")
        shape = tuple(reader.u64(f"a dimension of {name!r}") for _ in range(dims))[::-1]
        code = reader.u32(f"the type of {name!r}")
        relative = reader.u64(f"the offset of {name!r}")
        known = TENSOR_TYPES.get(code)
        if known is None:
            supported = ", ".join(entry.name for entry in TENSOR_TYPES.values())
            found = _OTHER_TYPES.get(code, f"number {code}")
            reader.fail(f"tensor {name!r} has type {found}, supported are {supported}")
        if 0 in shape or shape[-1] % known.block:
            reader.fail(
                f"tensor {name!r} has shape {shape}, expected non-zero dimensions and rows of a "
                f"multiple of {known.block} elements for {known.name}"
            )
        nbytes = math.prod(shape) // known.block * known.block_bytes
        return name, shape, known.name, relative, nbytes


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(path, "is empty, expected a GGUF file") from error


class _Reader:
    """A bounded cursor over the mapped file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.position = 0
        self.size = len(data)
        self._data = data

    def fail(self, problem: str) -> NoReturn:
        raise CheckpointError(self.path, problem)

    def take(self, count: int, what: str) -> bytes:
        start = self.position
        if count > self.size - start:
            self.fail(
                f"truncated: {what} needs {count} bytes at byte {start}, the file has {self.size}"
            )
        self.position = start + count
        return self._data[start : self.position]

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def check_count(self, count: int, least_bytes: int, what: str) -> None:
        room = self.size - self.position
        if count * least_bytes > room:
            self.fail(f"{what} is {count}, but only {room} bytes are left in the file")

    def string(self, what: str) -> str:
        length = self.u64(f"the length of {what}")
        if length > MAX_NAME_BYTES:
            self.fail(f"{what} has {length} bytes, expected at most {MAX_NAME_BYTES}")
        return self._text(self.take(length, what), what)

    def value(self, code: int, key: str, depth: int = 0) -> MetadataValue:
        dtype = _SCALARS.get(code)
        if dtype is not None:
            return np.frombuffer(self.take(dtype.itemsize, repr(key)), dtype)[0].item()
        if code == _STRING:
            return self._text(self.take(self.u64(f"the length of {key!r}"), repr(key)), key)
        if code == _ARRAY:
            return self._array(key, depth)
        self.fail(f"metadata {key!r} has unknown value type {code}")

    def _array(self, key: str, depth: int) -> MetadataValue:
        if depth == MAX_ARRAY_DEPTH:
            self.fail(f"metadata {key!r} nests arrays more than {MAX_ARRAY_DEPTH} deep")
        code = self.u32(f"the element type of {key!r}")
        count = self.u64(f"the length of {key!r}")
        dtype = _SCALARS.get(code)
        if dtype is not None:
            return np.frombuffer(self.take(count * dtype.itemsize, repr(key)), dtype)
        if code == _STRING:
            self.check_count(count, 8, f"length of {key!r}")
            return self._strings(count, key)
        self.check_count(count, 12, f"length of {key!r}")
        return [self.value(code, key, depth + 1) for _ in range(count)]

    def _strings(self, count: int, key: str) -> list[str]:
        data, position, size = self._data, self.position, self.size
        found: list[str] = []
        for _ in range(count):
            start = position + 8
            position = start + int.from_bytes(data[position:start], "little")
            if position > size:
                self.fail(f"truncated inside {key!r}: the file has {size} bytes")
            found.append(self._text(data[start:position], key))
        self.position = position
        return found

    def _text(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8")
