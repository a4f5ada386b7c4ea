"""Headerless audio: 16-bit little-endian PCM and ITU-T G.711, read and written piece by piece."""

from __future__ import annotations

import numpy as np
from antiphon_core.errors import InvalidArgument
from numpy.typing import NDArray

from antiphon_vocoder.formats import MAX_RATE, MIN_RATE, Encoding
from antiphon_vocoder.formats.resample import Resampler

G711_RATE = 8000
RAW_ENCODINGS = (Encoding.PCM16, Encoding.PCMU, Encoding.PCMA)

_MU_BIAS = 33
_MU_CLIP = 8158


def pcm16_from_float(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    """Rounds [-1, 1] to 16 bits; values outside are limited."""
    scaled = np.rint(samples * np.float32(32767.0))
    return np.clip(scaled, -32768, 32767).astype("<i2")


def float_from_pcm16(samples: NDArray[np.int16]) -> NDArray[np.float32]:
    """16-bit samples as float32 in [-1, 1)."""
    return samples.astype(np.float32) / np.float32(32768.0)


def _mu_law_table() -> NDArray[np.int16]:
    code = ~np.arange(256, dtype=np.uint8)
    exponent = (code >> 4) & 7
    mantissa = (code & 15).astype(np.int32)
    magnitude = (((mantissa << 1) + _MU_BIAS) << exponent) - _MU_BIAS
    return (np.where(code & 0x80, -magnitude, magnitude) * 4).astype(np.int16)


def _a_law_table() -> NDArray[np.int16]:
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent = ((code >> 4) & 7).astype(np.int32)
    mantissa = (code & 15).astype(np.int32)
    linear = (mantissa << 1) + 1
    magnitude = np.where(exponent == 0, linear, (linear + 32) << np.maximum(exponent - 1, 0))
    return (np.where(code & 0x80, magnitude, -magnitude) * 8).astype(np.int16)


_DECODE_TABLES = {Encoding.PCMU: _mu_law_table(), Encoding.PCMA: _a_law_table()}


def decode_g711(data: bytes, encoding: Encoding) -> NDArray[np.int16]:
    """G.711 bytes as 16-bit samples (len(data),)."""
    return _DECODE_TABLES[encoding][np.frombuffer(data, np.uint8)]


def encode_g711(samples: NDArray[np.int16], encoding: Encoding) -> bytes:
    """16-bit samples as G.711 bytes, one a sample."""
    wide = samples.astype(np.int32)
    encoded = _encode_mu_law(wide) if encoding is Encoding.PCMU else _encode_a_law(wide)
    return encoded.astype(np.uint8).tobytes()


def _encode_mu_law(samples: NDArray[np.int32]) -> NDArray[np.int32]:
    magnitude = np.minimum(np.abs(samples >> 2), _MU_CLIP) + _MU_BIAS
    exponent = np.floor(np.log2(magnitude)).astype(np.int32) - 5
    mantissa = (magnitude >> (exponent + 1)) & 15
    return ~(np.where(samples < 0, 0x80, 0) | (exponent << 4) | mantissa) & 0xFF


def _encode_a_law(samples: NDArray[np.int32]) -> NDArray[np.int32]:
    reduced = samples >> 3
    magnitude = np.where(reduced < 0, ~reduced, reduced)
    exponent = np.maximum(np.floor(np.log2(np.maximum(magnitude, 1))).astype(np.int32) - 4, 0)
    mantissa = (magnitude >> np.maximum(exponent, 1)) & 15
    return (np.where(samples >= 0, 0x80, 0) | (exponent << 4) | mantissa) ^ 0x55


class RawDecoder:
    """Reads a live stream of headerless bytes as mono float32 at the wanted rate.

    Any cut of the bytes gives the same samples; the first half of a split 16-bit sample is
    carried to the next piece.

    Args:
        encoding: pcm16, pcmu or pcma.
        source_rate: 8000 to 48000; pcmu and pcma are always 8000.
        target_rate: rate of the output.
        field: the format's path in the request.

    Raises:
        InvalidArgument: encoding or rate out of range, naming ``<field>.encoding`` or
            ``<field>.sample_rate_hz``.
    """

    def __init__(
        self,
        encoding: Encoding,
        source_rate: int,
        target_rate: int,
        *,
        field: str = "format",
    ) -> None:
        if encoding not in RAW_ENCODINGS:
            raise InvalidArgument(
                f"a live stream cannot be {encoding}: it has a container",
                field=f"{field}.encoding",
                allowed=RAW_ENCODINGS,
            )
        if encoding is not Encoding.PCM16 and source_rate != G711_RATE:
            raise InvalidArgument(
                f"{encoding} is {G711_RATE} Hz, got {source_rate}",
                field=f"{field}.sample_rate_hz",
                allowed=(str(G711_RATE),),
            )
        if not MIN_RATE <= source_rate <= MAX_RATE:
            raise InvalidArgument(
                f"the sample rate must be {MIN_RATE} to {MAX_RATE} Hz, got {source_rate}",
                field=f"{field}.sample_rate_hz",
                metadata={"limit": f"{MIN_RATE}..{MAX_RATE}", "observed": str(source_rate)},
            )
        self._encoding = encoding
        self._resampler = Resampler(source_rate, target_rate)
        self._carried = b""

    def decode(self, data: bytes) -> NDArray[np.float32]:
        """The samples (n,) that these bytes complete."""
        if self._encoding is not Encoding.PCM16:
            samples = decode_g711(data, self._encoding)
        else:
            data = self._carried + data
            whole = len(data) & ~1
            self._carried = data[whole:]
            samples = np.frombuffer(data[:whole], "<i2")
        return self._resampler.process(float_from_pcm16(samples))

    def flush(self) -> NDArray[np.float32]:
        """The rest after the last byte; half a sample at the end is dropped."""
        self._carried = b""
        return self._resampler.flush()
