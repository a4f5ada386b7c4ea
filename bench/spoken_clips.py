"""Spoken sentences in a file, for machines that lack the packaged voice and its libraries.

python -m bench.spoken_clips FILE.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_SCALE = 32767


def write_clips(file: Path, clips: list[NDArray[np.float32]]) -> None:
    """Keeps clips (n,) in -1..1 as 16-bit samples, in order."""
    samples = {f"{number:03d}": _pcm16(clip) for number, clip in enumerate(clips)}
    with file.open("wb") as target:
        np.savez_compressed(target, allow_pickle=False, **samples)


def read_clips(file: Path) -> list[NDArray[np.float32]]:
    """The clips of a file that :func:`write_clips` wrote."""
    with np.load(file) as kept:
        return [kept[name].astype(np.float32) / _SCALE for name in sorted(kept.files)]


def spoken_clips() -> list[NDArray[np.float32]]:
    """The tests' sentences by the packaged voice, (n,) at 16 kHz.

    Raises:
        ImportError: the voice or a library that it needs is missing.
    """
    # Here, so that a machine without the voice can read a file.
    from tests.unit.recognition.piper_speech import SENTENCES, speak

    return [speak(text) for text in SENTENCES]


def _pcm16(clip: NDArray[np.float32]) -> NDArray[np.int16]:
    return np.round(np.clip(clip, -1, 1) * _SCALE).astype(np.int16)


if __name__ == "__main__":
    write_clips(Path(sys.argv[1]), spoken_clips())
