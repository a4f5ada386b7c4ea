"""Encoding of a stream of samples into bytes that, joined, are a file of the wanted format."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Protocol

import av
import numpy as np
from antiphon_core.errors import InvalidArgument
from numpy.typing import NDArray

from antiphon_vocoder.formats import MAX_RATE, MIN_RATE, Encoding
from antiphon_vocoder.formats.pcm import G711_RATE, encode_g711, pcm16_from_float
from antiphon_vocoder.formats.resample import Resampler
from antiphon_vocoder.formats.wav import wav_header

OPUS_RATE = 48000
MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
AAC_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
_FIXED_RATES = {
    Encoding.OPUS: (OPUS_RATE,),
    Encoding.MP3: MP3_RATES,
    Encoding.AAC: AAC_RATES,
    Encoding.PCMU: (G711_RATE,),
    Encoding.PCMA: (G711_RATE,),
}
_MIME_TYPES = {
    Encoding.PCM16: "audio/pcm",
    Encoding.WAV: "audio/wav",
    Encoding.MP3: "audio/mpeg",
    Encoding.OPUS: "audio/ogg; codecs=opus",
    Encoding.FLAC: "audio/flac",
    Encoding.AAC: "audio/aac",
    Encoding.PCMU: "audio/PCMU",
    Encoding.PCMA: "audio/PCMA",
}


def resolve_rate(encoding: Encoding, wanted: int, native: int, *, field: str) -> int:
    """The output rate: ``wanted``, or where it is 0 the native rate or the nearest above that
    the encoding has.

    Raises:
        InvalidArgument: a rate outside 8000 to 48000 or one that the encoding lacks, naming
            ``field`` and the allowed values.
    """
    fixed = _FIXED_RATES.get(encoding)
    if wanted == 0:
        if fixed is None:
            return min(max(native, MIN_RATE), MAX_RATE)
        return next((rate for rate in fixed if rate >= native), fixed[-1])
    if not MIN_RATE <= wanted <= MAX_RATE:
        raise InvalidArgument(
            f"the sample rate must be {MIN_RATE} to {MAX_RATE} Hz, got {wanted}",
            field=field,
            metadata={"limit": f"{MIN_RATE}..{MAX_RATE}", "observed": str(wanted)},
        )
    if fixed is not None and wanted not in fixed:
        raise InvalidArgument(
            f"{encoding} cannot have a sample rate of {wanted} Hz",
            field=field,
            allowed=[str(rate) for rate in fixed],
        )
    return wanted


def mime_type(encoding: Encoding, rate: int) -> str:
    """MIME type of the joined bytes."""
    plain = _MIME_TYPES[encoding]
    return f"{plain}; rate={rate}; channels=1" if encoding is Encoding.PCM16 else plain


class Container(Protocol):
    """Turns samples of one stream into file bytes. Not thread-safe."""

    def write(self, samples: NDArray[np.float32]) -> bytes:
        """Bytes that are ready after these samples (n,); may be empty."""
        ...

    def finish(self) -> bytes:
        """The rest of the file; called once, after the last write."""
        ...


class AudioEncoder:
    """Resampler and container of one output stream. Not thread-safe.

    Args:
        encoding: format of the bytes.
        source_rate: rate of the samples written.
        target_rate: rate of the output, as ``resolve_rate`` gives it.
        exact_sizes: hold a WAV back until its end is known and give its header exact sizes.
    """

    def __init__(
        self, encoding: Encoding, source_rate: int, target_rate: int, *, exact_sizes: bool = False
    ) -> None:
        self.encoding = encoding
        self.rate = target_rate
        self.sample_count = 0
        """Samples that entered the container, at the output rate."""
        self._resampler = Resampler(source_rate, target_rate)
        self._container = _make_container(encoding, target_rate, exact_sizes)

    def write(self, samples: NDArray[np.float32]) -> bytes:
        """Bytes that are ready after these samples (n,); may be empty."""
        resampled = self._resampler.process(samples)
        self.sample_count += len(resampled)
        return self._container.write(resampled) if len(resampled) else b""

    def finish(self) -> bytes:
        """The rest of the file; empty when nothing was ever written."""
        tail = self._resampler.flush()
        self.sample_count += len(tail)
        if self.sample_count == 0:
            return b""
        written = self._container.write(tail) if len(tail) else b""
        return written + self._container.finish()


def _make_container(encoding: Encoding, rate: int, exact_sizes: bool) -> Container:
    if encoding is Encoding.PCM16:
        return _RawPcm()
    if encoding is Encoding.WAV:
        return _ExactWav(rate) if exact_sizes else _StreamedWav(rate)
    if encoding in (Encoding.PCMU, Encoding.PCMA):
        return _RawG711(encoding)
    return _AvContainer(encoding, rate)


class _RawPcm:
    def write(self, samples: NDArray[np.float32]) -> bytes:
        return pcm16_from_float(samples).tobytes()

    def finish(self) -> bytes:
        return b""


class _RawG711:
    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding

    def write(self, samples: NDArray[np.float32]) -> bytes:
        return encode_g711(pcm16_from_float(samples), self._encoding)

    def finish(self) -> bytes:
        return b""


class _StreamedWav:
    def __init__(self, rate: int) -> None:
        self._header = wav_header(rate, None)

    def write(self, samples: NDArray[np.float32]) -> bytes:
        header, self._header = self._header, b""
        return header + pcm16_from_float(samples).tobytes()

    def finish(self) -> bytes:
        return b""


class _ExactWav:
    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._parts: list[bytes] = []

    def write(self, samples: NDArray[np.float32]) -> bytes:
        self._parts.append(pcm16_from_float(samples).tobytes())
        return b""

    def finish(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return wav_header(self._rate, len(data) // 2) + data


class _Sink:
    """What PyAV writes to: not seekable, so that no muxer goes back to patch sizes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data


_AV_SETTINGS: dict[Encoding, tuple[str, str, str, int, dict[str, str], dict[str, str]]] = {
    # container, codec, sample format, bits a second, codec options, container options
    Encoding.MP3: ("mp3", "libmp3lame", "fltp", 64_000, {}, {"write_xing": "0"}),
    Encoding.OPUS: (
        "ogg", "libopus", "flt", 48_000,
        {"application": "audio", "frame_duration": "20"}, {"page_duration": "20000"},
    ),
    Encoding.FLAC: ("flac", "flac", "s16", 0, {"compression_level": "5"}, {}),
    Encoding.AAC: ("adts", "aac", "fltp", 64_000, {}, {}),
}  # fmt: skip

_DELAYED_TAIL = {Encoding.MP3: 1152, Encoding.AAC: 1024}
"""Silence written last where the container cannot tell the codec's delay: without it decoders
would cut the end of the sound by as much."""


class _AvContainer:
    """A compressed format; the container hands out each packet as soon as it is encoded."""

    def __init__(self, encoding: Encoding, rate: int) -> None:
        container, codec, sample_format, bit_rate, codec_options, options = _AV_SETTINGS[encoding]
        self._sink = _Sink()
        self._output = av.open(
            self._sink, mode="w", format=container, options={"flush_packets": "1", **options}
        )
        stream: Any = self._output.add_stream(codec, rate=rate, options=codec_options)
        stream.layout = "mono"
        stream.format = sample_format
        if bit_rate:
            stream.bit_rate = bit_rate
        self._stream = stream
        self._rate = rate
        self._integer = sample_format == "s16"
        self._tail = _DELAYED_TAIL.get(encoding, 0)
        self._position = 0

    def write(self, samples: NDArray[np.float32]) -> bytes:
        values: Any = pcm16_from_float(samples) if self._integer else np.clip(samples, -1.0, 1.0)
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(values[None, :]), format=self._stream.format.name, layout="mono"
        )
        frame.sample_rate = self._rate
        frame.pts = self._position
        frame.time_base = Fraction(1, self._rate)
        self._position += len(samples)
        self._output.mux(self._stream.encode(frame))
        return self._sink.take()

    def finish(self) -> bytes:
        last = self.write(np.zeros(self._tail, np.float32)) if self._tail else b""
        self._output.mux(self._stream.encode(None))
        self._output.close()
        return last + self._sink.take()
