"""Audio formats: resampling, decoding of any input, encoding of any output.

Inside the service audio is mono float32 in [-1, 1] at a known rate; everything else lives here.
"""

from __future__ import annotations

from enum import StrEnum

MIN_RATE = 8000
MAX_RATE = 48000


class Encoding(StrEnum):
    """How bytes of audio are read or written."""

    PCM16 = "pcm16"
    WAV = "wav"
    MP3 = "mp3"
    OPUS = "opus"
    FLAC = "flac"
    AAC = "aac"
    PCMU = "pcmu"
    PCMA = "pcma"
