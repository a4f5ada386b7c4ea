"""RIFF WAVE: reading by walking the chunks, writing with exact or open sizes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from antiphon_core.errors import InvalidArgument
from numpy.typing import NDArray

from antiphon_vocoder.formats import Encoding
from antiphon_vocoder.formats.pcm import decode_g711, float_from_pcm16

_PCM, _FLOAT, _A_LAW, _MU_LAW, _EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
_READABLE = {
    (_PCM, 8), (_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32), (_FLOAT, 64),
    (_A_LAW, 8), (_MU_LAW, 8),
}  # fmt: skip
_OPEN_SIZE = 0xFFFFFFFF
_LARGEST_DATA = 0xFFFFFFDB
"""RIFF sizes are 32 bits; this leaves room for the header's 36 bytes after the RIFF size."""
_HEADER_AFTER_RIFF_SIZE = 36
_SAMPLE_BYTES = 2
_SKIP_BLOCK = 1 << 16
_LONGEST_HEAD = 4096
"""Bytes of a chunk of facts that are looked at: its size may be a lie of gigabytes."""


def wav_header(rate: int, sample_count: int | None) -> bytes:
    """The 44-byte header of a 16-bit mono file.

    Args:
        rate: samples a second.
        sample_count: exact length; None for a stream whose end is not known: the RIFF size is
            then 0xFFFFFFFF and the data size the largest whole number of samples, which readers
            take as "until the end of the file".
    """
    if sample_count is None:
        riff_size = _OPEN_SIZE
        data_size = _LARGEST_DATA - _LARGEST_DATA % _SAMPLE_BYTES
    else:
        data_size = sample_count * _SAMPLE_BYTES
        riff_size = data_size + _HEADER_AFTER_RIFF_SIZE
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF", riff_size, b"WAVE",
        b"fmt ", 16, _PCM, 1, rate, rate * _SAMPLE_BYTES, _SAMPLE_BYTES, 8 * _SAMPLE_BYTES,
        b"data", data_size,
    )  # fmt: skip


@dataclass(frozen=True)
class WavFormat:
    """The fmt chunk, with an extensible format resolved to its real tag."""

    tag: int
    channels: int
    rate: int
    bits: int

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of every channel."""
        return self.channels * self.bits // 8

    @property
    def readable(self) -> bool:
        """Whether WavReader decodes it; compressed tags are left to PyAV."""
        return (self.tag, self.bits) in _READABLE


def is_wav(head: bytes) -> bool:
    """Whether the first 12 bytes are those of a RIFF WAVE file."""
    return len(head) >= 12 and head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE"


class WavReader:
    """Reads a WAVE file front to back; the source need not be seekable.

    Chunks before ``data`` are skipped with their padding byte, what follows ``data`` is never
    taken for sound, and a size beyond the end of the file, or a placeholder, means "until the
    end". The placeholder of an RF64 file stands for the size in its ds64 chunk.

    Raises:
        InvalidArgument: reason INVALID_AUDIO when there is no fmt or data chunk.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        head = source.read(12)
        if not is_wav(head):
            raise _invalid("it does not start with a RIFF WAVE header")
        open_ended = struct.unpack("<I", head[4:8])[0] in (0, _OPEN_SIZE)
        found: WavFormat | None = None
        long_size: int | None = None
        while True:
            header = source.read(8)
            if len(header) < 8:
                raise _invalid("it has no data chunk")
            name, size = header[:4], struct.unpack("<I", header[4:])[0]
            if name == b"data":
                break
            if name == b"fmt ":
                found = _parse_format(self._head_of(size))
            elif name == b"ds64":
                long_size = _parse_long_size(self._head_of(size))
            else:
                self._skip(size + size % 2)
        if found is None:
            raise _invalid("its data chunk comes before its fmt chunk")
        self.format = found
        if size == _OPEN_SIZE and long_size:
            size, open_ended = long_size, False
        to_end = size == _OPEN_SIZE or (size == 0 and open_ended)
        self._remaining: int | None = None if to_end else size

    def blocks(self, frames: int = 1 << 14) -> Iterator[NDArray[np.float32]]:
        """The audio in blocks (n, channels), n at most `frames`; an incomplete last frame is
        dropped."""
        frame_bytes = self.format.frame_bytes
        carried = b""
        while True:
            wanted = frames * frame_bytes - len(carried)
            if self._remaining is not None:
                wanted = min(wanted, self._remaining)
            data = self._source.read(wanted) if wanted else b""
            if not data:
                return
            if self._remaining is not None:
                self._remaining -= len(data)
            data = carried + data
            whole = len(data) - len(data) % frame_bytes
            carried = data[whole:]
            if whole:
                yield _decode(data[:whole], self.format).reshape(-1, self.format.channels)

    def _head_of(self, size: int) -> bytes:
        """The begin of a chunk of this size; the source then stands behind the chunk."""
        head = self._source.read(min(size, _LONGEST_HEAD))
        self._skip(size + size % 2 - len(head))
        return head

    def _skip(self, size: int) -> None:
        while size > 0:
            skipped = self._source.read(min(size, _SKIP_BLOCK))
            if not skipped:
                return
            size -= len(skipped)


def _parse_format(chunk: bytes) -> WavFormat:
    if len(chunk) < 16:
        raise _invalid("its fmt chunk is too short")
    tag, channels, rate, _, _, bits = struct.unpack("<HHIIHH", chunk[:16])
    if tag == _EXTENSIBLE and len(chunk) >= 26:
        (tag,) = struct.unpack("<H", chunk[24:26])
    if channels == 0 or rate == 0:
        raise _invalid(f"its fmt chunk says {channels} channels at {rate} Hz")
    return WavFormat(tag=tag, channels=channels, rate=rate, bits=bits)


def _parse_long_size(chunk: bytes) -> int:
    """Bytes of the data chunk of an RF64 file, which its own 32 bits cannot tell."""
    if len(chunk) < 16:
        raise _invalid("its ds64 chunk is too short")
    return struct.unpack("<Q", chunk[8:16])[0]


def _decode(data: bytes, wav: WavFormat) -> NDArray[np.float32]:
    if wav.tag == _FLOAT:
        return np.frombuffer(data, "<f4" if wav.bits == 32 else "<f8").astype(np.float32)
    if wav.tag in (_MU_LAW, _A_LAW):
        encoding = Encoding.PCMU if wav.tag == _MU_LAW else Encoding.PCMA
        return float_from_pcm16(decode_g711(data, encoding))
    if wav.bits == 8:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / np.float32(128)
    if wav.bits == 16:
        return float_from_pcm16(np.frombuffer(data, "<i2"))
    if wav.bits == 24:
        triples = np.frombuffer(data, np.uint8).reshape(-1, 3)
        widened = np.zeros((len(triples), 4), np.uint8)
        widened[:, 1:] = triples
        return widened.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
    return np.frombuffer(data, "<i4").astype(np.float32) / np.float32(2**31)


def _invalid(problem: str) -> InvalidArgument:
    return InvalidArgument(
        f"the audio cannot be read as WAV: {problem}", reason="INVALID_AUDIO", field="audio"
    )
