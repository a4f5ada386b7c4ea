"""Decoding of audio files of any container to mono float32 at a wanted rate."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, BinaryIO

import av
import numpy as np
from antiphon_core.errors import InvalidArgument
from av.error import FFmpegError
from numpy.typing import NDArray

from antiphon_vocoder.formats.resample import Resampler
from antiphon_vocoder.formats.wav import WavReader, is_wav

# Only containers that hold their own audio: playlist formats would open further files or URLs
# named by the upload.
_CONTAINERS = "aac,aiff,amr,asf,au,caf,flac,matroska,mov,mp3,mpegts,ogg,w64,wav"
_OPEN_OPTIONS = {"format_whitelist": _CONTAINERS, "protocol_whitelist": ""}


def decode_audio(
    source: bytes | BinaryIO, target_rate: int, *, max_seconds: float | None = None
) -> NDArray[np.float32]:
    """The whole file as mono samples (n,); arguments and errors as decode_blocks."""
    blocks = list(decode_blocks(source, target_rate, max_seconds=max_seconds))
    return np.concatenate(blocks)


def decode_blocks(
    source: bytes | BinaryIO, target_rate: int, *, max_seconds: float | None = None
) -> Iterator[NDArray[np.float32]]:
    """Decodes a file block by block, in memory independent of its length.

    Args:
        source: the file's bytes, or a seekable binary file.
        target_rate: samples a second of the output.
        max_seconds: longest audio that is accepted; None accepts any.

    Yields:
        Mono samples (n,), channels averaged.

    Raises:
        InvalidArgument: reason INVALID_AUDIO when no audio can be decoded or there is none;
            TOO_LARGE when it is longer than max_seconds.
    """
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    limit = None if max_seconds is None else int(max_seconds * target_rate)
    total = 0
    for block in _resampled(_native_blocks(file), target_rate):
        total += len(block)
        if not np.isfinite(block).all():
            raise _invalid("it has samples that are no finite numbers")
        if limit is not None and total > limit:
            raise InvalidArgument(
                f"the audio is longer than {max_seconds:g} s",
                reason="TOO_LARGE",
                field="audio",
                metadata={"limit": f"{max_seconds:g}"},
            )
        if len(block):
            yield block
    if total == 0:
        raise _invalid("it has no samples")


def _resampled(
    blocks: Iterator[tuple[int, NDArray[np.float32]]], target_rate: int
) -> Iterator[NDArray[np.float32]]:
    """Follows changes of the source's rate, which some streams make after their first frame."""
    resampler: Resampler | None = None
    for rate, block in blocks:
        if resampler is None or resampler.source_rate != rate:
            if resampler is not None:
                yield resampler.flush()
            resampler = Resampler(rate, target_rate)
        yield resampler.process(block)
    if resampler is not None:
        yield resampler.flush()


def _native_blocks(file: BinaryIO) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """(rate, mono samples) at the file's own rate."""
    start = file.tell()
    head = file.read(12)
    file.seek(start)
    if not head:
        raise _invalid("it is empty")
    if is_wav(head):
        reader = WavReader(file)
        if reader.format.readable:
            for block in reader.blocks():
                yield reader.format.rate, block.mean(axis=1, dtype=np.float32)
            return
        file.seek(start)
    yield from _container_blocks(file)


def _container_blocks(file: BinaryIO) -> Iterator[tuple[int, NDArray[np.float32]]]:
    try:
        with av.open(file, mode="r", options=_OPEN_OPTIONS) as container:
            if not container.streams.audio:
                raise _invalid("it has no audio stream")
            stream = container.streams.audio[0]
            stream.codec_context.thread_type = "NONE"
            for frame in _decoded_frames(container, stream):
                yield frame.sample_rate, _mono(frame)
    except FFmpegError as error:
        raise _invalid(error.strerror or "unknown format") from error


def _decoded_frames(container: Any, stream: Any) -> Iterator[Any]:
    """Frames of the stream; a damaged packet between good ones is left out, as players do."""
    decoded = 0
    damaged: FFmpegError | None = None
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except FFmpegError as error:
            damaged = error
            continue
        for frame in frames:
            decoded += 1
            yield frame
    if decoded == 0 and damaged is not None:
        raise damaged


def _mono(frame: Any) -> NDArray[np.float32]:
    """One decoded frame of any sample format as mono float32 (n,)."""
    values = frame.to_ndarray()
    if frame.format.is_packed:
        values = values.reshape(-1, frame.layout.nb_channels).T
    if values.dtype == np.uint8:
        scaled = (values.astype(np.float32) - 128) / np.float32(128)
    elif values.dtype.kind == "i":
        scaled = values.astype(np.float32) / np.float32(2.0 ** (8 * values.dtype.itemsize - 1))
    else:
        scaled = values.astype(np.float32, copy=False)
    return scaled.mean(axis=0, dtype=np.float32)


def _invalid(problem: str) -> InvalidArgument:
    return InvalidArgument(
        f"the audio cannot be decoded: {problem}", reason="INVALID_AUDIO", field="audio"
    )
