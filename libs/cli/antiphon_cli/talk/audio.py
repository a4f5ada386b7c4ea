"""PCM and WAV helpers of the command line; samples are mono float32 in -1 to 1."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import soxr
from antiphon_core.errors import InvalidArgument
from numpy.typing import NDArray

Samples = NDArray[np.float32]

REALTIME_RATE = 24_000
"""Sample rate of the realtime protocol's audio/pcm."""
SPEECH_LEVEL = 0.02
"""Amplitude above which a sample counts as speech when the end of speech is looked for."""


def from_pcm16(data: bytes) -> Samples:
    """Little-endian 16-bit samples as floats; a trailing odd byte is dropped."""
    return np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.float32) / 32768.0


def to_pcm16(samples: Samples) -> bytes:
    """Floats as little-endian 16-bit samples, clipped."""
    return (np.clip(samples, -1.0, 32767 / 32768) * 32768.0).astype("<i2").tobytes()


def read_wav(path: Path, rate: int = REALTIME_RATE) -> Samples:
    """A WAV file as mono samples at ``rate``.

    Raises:
        InvalidArgument: when the file is missing or not a 16-bit PCM WAV.
    """
    try:
        with wave.open(str(path), "rb") as file:
            if file.getsampwidth() != 2:
                raise InvalidArgument(
                    f"{path}: {8 * file.getsampwidth()}-bit WAV; 16-bit PCM is supported",
                    field="path",
                )
            frames = from_pcm16(file.readframes(file.getnframes()))
            source_rate, channels = file.getframerate(), file.getnchannels()
    except FileNotFoundError:
        raise InvalidArgument(f"{path}: no such file", field="path") from None
    except (wave.Error, EOFError) as error:
        raise InvalidArgument(f"{path}: not a WAV file: {error}", field="path") from None
    mono = frames.reshape(-1, channels).mean(axis=1) if channels > 1 else frames
    return mono if source_rate == rate else soxr.resample(mono, source_rate, rate)


def write_wav(path: Path, samples: Samples, rate: int = REALTIME_RATE) -> None:
    """Writes mono 16-bit PCM."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(to_pcm16(samples))


def end_of_speech(samples: Samples) -> int:
    """Index after the last sample louder than SPEECH_LEVEL; 0 when all is silence."""
    loud = np.flatnonzero(np.abs(samples) > SPEECH_LEVEL)
    return int(loud[-1]) + 1 if loud.size else 0
