"""The GGUF reader on good files, damaged files and files that are something else."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from antiphon_nn.errors import CheckpointError
from antiphon_nn.gguf_file import GgufFile
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st

from .gguf_samples import hugging_face_weights, write_gguf


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "sample.gguf"
    write_gguf(path, "llama", hugging_face_weights("llama"))
    return path


def header(*parts: bytes, version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def key(name: str, code: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", code) + value


def tensor(name: str, dims: tuple[int, ...], code: int, offset: int) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + shape + struct.pack("<IQ", code, offset)


def test_reads_what_an_independent_reader_reads(sample: Path) -> None:
    expected = GGUFReader(sample)
    file = GgufFile(sample)
    assert list(file.tensors) == [entry.name for entry in expected.tensors]
    for entry in expected.tensors:
        info = file.tensors[entry.name]
        assert info.shape == tuple(reversed(entry.shape.tolist()))
        assert info.kind == entry.tensor_type.name
        np.testing.assert_array_equal(
            file.data(entry.name).reshape(-1), entry.data.view(np.uint8).reshape(-1)
        )
    assert file.metadata["llama.embedding_length"] == 64
    assert file.metadata["general.architecture"] == "llama"
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list) and tokens[:3] == ["<s>", "é", "0"]
    scores = file.metadata["tokenizer.ggml.scores"]
    assert isinstance(scores, np.ndarray) and scores.dtype == np.float32 and len(scores) == 50


def test_needs_no_torch() -> None:
    code = "import sys, antiphon_nn.gguf_file; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


BAD_FILES = {
    "text": (b"# A model card\n" * 20, r"not a GGUF file: starts with b'# A ', expected b'GGUF'"),
    "empty": (b"", "is empty"),
    "short": (b"GG", "truncated: the magic number needs 4 bytes"),
    "version": (header(version=1), "GGUF version 1, expected 2 or 3"),
    "big-endian": (header(version=0x03000000), "a big-endian file"),
    "tensor count": (header(tensors=2**60), "tensor count is 1152921504606846976"),
    "key count": (header(keys=2**60), "metadata count is 1152921504606846976"),
    "key length": (header(struct.pack("<Q", 2**40), bytes(64), keys=1), "expected at most 65535"),
    "value type": (header(key("a", 77, bytes(32)), keys=1), "'a' has unknown value type 77"),
    "array length": (
        header(key("a", 9, struct.pack("<IQ", 4, 2**62)), bytes(64), keys=1),
        "truncated: 'a' needs",
    ),
    "string array": (
        header(key("a", 9, struct.pack("<IQ", 8, 2**61)), bytes(64), keys=1),
        "length of 'a' is",
    ),
    "nesting": (
        header(key("a", 9, struct.pack("<IQ", 9, 1) * 9), bytes(64), keys=1),
        "nests arrays more than 4 deep",
    ),
    "twice": (header(key("a", 0, b"\1"), key("a", 0, b"\1"), bytes(9), keys=2), "appears twice"),
    "not UTF-8": (header(struct.pack("<Q", 2) + b"\xff\xfe", bytes(32), keys=1), "is not UTF-8"),
    "alignment": (
        header(key("general.alignment", 4, struct.pack("<I", 3)), keys=1),
        "general.alignment is 3, expected a multiple of 8",
    ),
    "unknown type": (
        header(tensor("w", (32,), 99, 0), bytes(256), tensors=1),
        "tensor 'w' has type number 99, supported are F32, F16, Q4_0",
    ),
    "unsupported type": (
        header(tensor("w", (32,), 20, 0), bytes(256), tensors=1),
        "tensor 'w' has type IQ4_NL, supported are",
    ),
    "rank": (header(tensor("w", (1,) * 5, 0, 0), bytes(256), tensors=1), "has 5 dimensions"),
    "ragged row": (header(tensor("w", (33,), 8, 0), bytes(256), tensors=1), "multiple of 32"),
    "zero": (header(tensor("w", (0, 4), 0, 0), bytes(256), tensors=1), "non-zero dimensions"),
    "huge": (header(tensor("w", (2**60, 8), 0, 0), bytes(256), tensors=1), "truncated: tensor"),
    "offset": (header(tensor("w", (8,), 0, 2**63), bytes(256), tensors=1), "truncated: tensor"),
    "unaligned": (header(tensor("w", (8,), 0, 4), bytes(256), tensors=1), "not aligned to 32"),
    "overlap": (
        header(tensor("v", (32,), 0, 0), tensor("w", (8,), 0, 32), bytes(512), tensors=2),
        "tensors 'v' and 'w' overlap",
    ),
}


@pytest.mark.parametrize("name", list(BAD_FILES))
def test_a_bad_file_is_refused_with_its_name_and_fault(tmp_path: Path, name: str) -> None:
    content, problem = BAD_FILES[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=problem) as caught:
        GgufFile(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        GgufFile(tmp_path / "none.gguf")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_truncated_file_always_ends_in_a_checkpoint_error(
    sample: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = sample.read_bytes()
    length = data.draw(st.integers(0, len(whole) - 1))
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    path.write_bytes(whole[:length])
    # The writer pads the last tensor, so a cut inside the padding loses nothing.
    end = max(info.offset + info.nbytes for info in GgufFile(sample).tensors.values())
    if length < end:
        with pytest.raises(CheckpointError):
            GgufFile(path)


@settings(max_examples=300, deadline=None)
@given(position=st.integers(0, 2500), value=st.integers(0, 255))
def test_a_flipped_byte_never_does_worse_than_a_checkpoint_error(
    sample: Path, tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    content = bytearray(sample.read_bytes())
    content[position] = value
    path = tmp_path_factory.mktemp("flip") / "flip.gguf"
    path.write_bytes(content)
    try:
        file = GgufFile(path)
    except CheckpointError:
        return
    for name in file.tensors:
        file.data(name)
