"""Output formats read back, and input files of every kind."""

from __future__ import annotations

import io
import struct
import wave

import numpy as np
import pytest
from antiphon_core.errors import InvalidArgument
from antiphon_vocoder.formats import Encoding
from antiphon_vocoder.formats.decode import decode_audio
from antiphon_vocoder.formats.encode import AudioEncoder, resolve_rate
from antiphon_vocoder.formats.pcm import decode_g711, pcm16_from_float
from antiphon_vocoder.formats.resample import resample
from antiphon_vocoder.formats.wav import WavReader, wav_header

NATIVE = 22050
TIME = np.arange(NATIVE + 333) / NATIVE
PHASE = 2 * np.pi * (120 + 40 * TIME) * TIME
SIGNAL = (
    0.2 * (1 - np.cos(2 * np.pi * 4 * TIME)) * sum(np.sin(k * PHASE) / k for k in range(1, 20)) / 2
).astype(np.float32)
"""A voice-like sound: gliding harmonics in syllables, which unlike a steady tone shows shifts."""


def encode(encoding: Encoding, rate: int = 0, piece: int = 2205, exact: bool = False) -> bytes:
    target = resolve_rate(encoding, rate, NATIVE, field="rate")
    encoder = AudioEncoder(encoding, NATIVE, target, exact_sizes=exact)
    parts = [encoder.write(SIGNAL[i : i + piece]) for i in range(0, len(SIGNAL), piece)]
    parts.append(encoder.finish())
    assert encoder.sample_count == -(-len(SIGNAL) * target // NATIVE)
    return b"".join(parts)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("rate", [8000, NATIVE, 48000])
def test_wav_is_read_by_a_strict_reader(rate: int, exact: bool) -> None:
    data = encode(Encoding.WAV, rate, exact=exact)
    expected = pcm16_from_float(resample(SIGNAL, NATIVE, rate))
    with wave.open(io.BytesIO(data)) as reader:
        assert (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) == (rate, 1, 2)
        if exact:
            assert reader.getnframes() == len(expected)
        assert np.array_equal(np.frombuffer(reader.readframes(len(expected)), "<i2"), expected)
    assert data.count(b"RIFF") == 1
    riff, size = struct.unpack("<4sI", data[:8])
    assert riff == b"RIFF"
    assert size == (len(data) - 8 if exact else 0xFFFFFFFF)
    assert struct.unpack("<I", data[40:44])[0] == (len(data) - 44 if exact else 0xFFFFFFDA)


@pytest.mark.parametrize(
    ("encoding", "rate"),
    [
        (Encoding.FLAC, 0), (Encoding.FLAC, 8000), (Encoding.FLAC, 11111), (Encoding.OPUS, 0),
        (Encoding.OPUS, 48000), (Encoding.WAV, 16000),
    ],
)  # fmt: skip
def test_containers_decode_to_the_exact_sample_count(encoding: Encoding, rate: int) -> None:
    target = resolve_rate(encoding, rate, NATIVE, field="rate")
    back = decode_audio(encode(encoding, rate), target)
    expected = resample(SIGNAL, NATIVE, target)
    assert len(back) == len(expected)
    error = np.sqrt(np.mean((back - expected)[2000:-2000] ** 2))
    assert error < (0.05 if encoding is Encoding.OPUS else 1e-4)


@pytest.mark.parametrize("rate", [0, 16000, 44100])
def test_mp3_holds_all_samples_and_its_codec_delay(rate: int) -> None:
    target = resolve_rate(Encoding.MP3, rate, NATIVE, field="rate")
    back = decode_audio(encode(Encoding.MP3, rate), target)
    expected = resample(SIGNAL, NATIVE, target)
    assert 0 <= len(back) - len(expected) <= 3 * 1152
    delays = range(len(back) - len(expected) + 1)
    errors = [np.sqrt(np.mean((back[d : d + len(expected)] - expected) ** 2)) for d in delays]
    assert min(errors) < 0.02
    assert 0 < int(np.argmin(errors)) <= 1152 + 529


def test_aac_is_adts_and_holds_all_samples_behind_its_priming() -> None:
    data = encode(Encoding.AAC)
    assert data[:2] in (b"\xff\xf1", b"\xff\xf9")
    back = decode_audio(data, NATIVE)
    assert 1024 <= len(back) - len(SIGNAL) <= 3 * 1024
    heard = back[1024 : 1024 + len(SIGNAL)]
    assert np.sqrt(np.mean((heard - SIGNAL) ** 2)) < 0.03


@pytest.mark.parametrize("encoding", [e for e in Encoding if e is not Encoding.AAC])
def test_bytes_do_not_depend_on_the_pieces_by_more_than_the_packets(encoding: Encoding) -> None:
    small = encode(encoding, piece=700)
    large = encode(encoding, piece=20000)
    if encoding in (Encoding.OPUS,):
        # Ogg pages follow the writes and carry a random stream serial; the sound does not.
        rate = 48000
        assert np.array_equal(decode_audio(small, rate), decode_audio(large, rate))
    else:
        assert small == large


def test_g711_output() -> None:
    data = encode(Encoding.PCMU)
    samples = decode_g711(data, Encoding.PCMU)
    assert len(samples) == -(-len(SIGNAL) * 8000 // NATIVE)


@pytest.mark.parametrize("encoding", [Encoding.MP3, Encoding.OPUS, Encoding.FLAC])
def test_first_bytes_come_before_the_end(encoding: Encoding) -> None:
    encoder = AudioEncoder(encoding, NATIVE, resolve_rate(encoding, 0, NATIVE, field="rate"))
    assert encoder.write(SIGNAL[:8000])


def test_nothing_written_is_nothing() -> None:
    for encoding in Encoding:
        rate = resolve_rate(encoding, 0, NATIVE, field="rate")
        assert AudioEncoder(encoding, NATIVE, rate).finish() == b""


@pytest.mark.parametrize(
    ("encoding", "rate"),
    [(Encoding.OPUS, 24000), (Encoding.MP3, 11111), (Encoding.PCM16, 7999), (Encoding.WAV, 48001)],
)
def test_rates_that_a_format_lacks(encoding: Encoding, rate: int) -> None:
    with pytest.raises(InvalidArgument) as error:
        resolve_rate(encoding, rate, NATIVE, field="config.output_format.sample_rate_hz")
    assert error.value.field == "config.output_format.sample_rate_hz"
    assert {"allowed", "limit"} & error.value.metadata.keys()


def chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def wav_file(
    values: np.ndarray, *, tag: int, bits: int, channels: int = 1, extensible: bool = False,
    before: bytes = b"", after: bytes = b"", data_size: int | None = None,
) -> bytes:  # fmt: skip
    block = channels * bits // 8
    form = struct.pack(
        "<HHIIHH", 0xFFFE if extensible else tag, channels, 16000, 16000 * block, block, bits
    )
    if extensible:
        form += struct.pack("<HHIH", 22, bits, 4, tag) + bytes.fromhex(
            "000000001000800000aa00389b71"
        )
    raw = values.tobytes()
    size = len(raw) if data_size is None else data_size
    body = b"WAVE" + chunk(b"fmt ", form) + before + b"data" + struct.pack("<I", size) + raw
    body += b"\0" * (len(raw) % 2) + after
    return b"RIFF" + struct.pack("<I", len(body)) + body


RAMP = np.linspace(-0.9, 0.9, 1001)


def as_24_bit(values: np.ndarray) -> np.ndarray:
    wide = np.round(values * 2**23).astype("<i4")
    return wide.view(np.uint8).reshape(-1, 4)[:, :3].copy()


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(
    ("values", "tag", "bits", "tolerance"),
    [
        (np.round(RAMP * 128 + 128).astype(np.uint8), 1, 8, 0.005),
        (np.round(RAMP * 32768).astype("<i2"), 1, 16, 2e-5),
        (as_24_bit(RAMP), 1, 24, 1e-6),
        (np.round(RAMP * 2**31).astype("<i4"), 1, 32, 1e-6),
        (RAMP.astype("<f4"), 3, 32, 1e-6),
        (RAMP.astype("<f8"), 3, 64, 1e-6),
    ],
)
def test_wav_sample_formats(
    values: np.ndarray, tag: int, bits: int, tolerance: float, extensible: bool
) -> None:
    data = wav_file(values, tag=tag, bits=bits, extensible=extensible)
    samples = decode_audio(data, 16000)
    assert len(samples) == len(RAMP)
    assert np.abs(samples - RAMP).max() < tolerance


def test_wav_chunks_round_the_data_are_not_sound() -> None:
    values = np.round(RAMP * 32768).astype("<i2")
    plain = decode_audio(wav_file(values, tag=1, bits=16), 16000)
    odd = chunk(b"LIST", b"x" * 33)
    dressed = wav_file(values, tag=1, bits=16, before=odd, after=chunk(b"LIST", b"y" * 4001))
    assert np.array_equal(decode_audio(dressed, 16000), plain)


@pytest.mark.parametrize("told", [True, False])
def test_a_long_wav_tells_its_size_in_a_chunk_of_its_own(told: bool) -> None:
    """RF64; where its size is left open too, the end of the file is the end of the sound."""
    values = np.round(RAMP * 32768).astype("<i2")
    sizes = struct.pack("<QQQI", 0, values.nbytes if told else 0, 0, 0)
    data = wav_file(
        values, tag=1, bits=16, before=chunk(b"ds64", sizes), data_size=0xFFFFFFFF,
        after=chunk(b"LIST", b"y" * 4001) if told else b"",
    )  # fmt: skip
    assert len(decode_audio(b"RF64" + b"\xff" * 4 + data[8:], 16000)) == len(RAMP)


def test_a_chunk_with_a_lie_for_a_size_is_not_read_into_memory() -> None:
    class Source(io.BytesIO):
        longest = 0

        def read(self, size: int | None = -1) -> bytes:
            self.longest = max(self.longest, size or 0)
            return super().read(size)

    source = Source(b"RIFF\0\0\0\0WAVE" + b"fmt " + struct.pack("<I", 0xFFFFFFF0) + bytes(100))
    with pytest.raises(InvalidArgument, match="0 channels"):
        WavReader(source)
    assert source.longest <= 1 << 16


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_refused(bad: float) -> None:
    values = RAMP.astype("<f4")
    values[500] = bad
    with pytest.raises(InvalidArgument, match="no finite numbers") as error:
        decode_audio(wav_file(values, tag=3, bits=32), 16000)
    assert error.value.reason == "INVALID_AUDIO"


@pytest.mark.parametrize("size", [0xFFFFFFFF, 10**8])
def test_wav_sizes_beyond_the_end_mean_the_end(size: int) -> None:
    values = np.round(RAMP * 32768).astype("<i2")
    assert len(decode_audio(wav_file(values, tag=1, bits=16, data_size=size), 16000)) == len(RAMP)


def test_own_streamed_wav_is_read() -> None:
    assert len(decode_audio(wav_header(16000, None) + bytes(2000), 16000)) == 1000


def test_stereo_is_averaged() -> None:
    both = np.stack((RAMP, -RAMP), axis=1)
    data = wav_file(np.round(both * 32768).astype("<i2"), tag=1, bits=16, channels=2)
    assert np.abs(decode_audio(data, 16000)).max() < 1e-4


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"this is a text file, not audio\n" * 50,
        b"RIFF\x10\0\0\0WAVE",
        b"RIFF\x10\0\0\0WAVEdata\x04\0\0\0abcd",
        wav_header(16000, 0),
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n" * 4,
        bytes(range(256)) * 20,
    ],
)
def test_what_is_not_audio(data: bytes) -> None:
    with pytest.raises(InvalidArgument) as error:
        decode_audio(data, 16000)
    assert error.value.reason == "INVALID_AUDIO"


def test_longer_than_permitted() -> None:
    with pytest.raises(InvalidArgument) as error:
        decode_audio(encode(Encoding.FLAC), 16000, max_seconds=0.5)
    assert error.value.reason == "TOO_LARGE"


def test_damaged_tail_keeps_what_was_good() -> None:
    data = encode(Encoding.MP3)
    assert len(decode_audio(data[: len(data) // 2], 16000)) > 4000


def test_wav_reader_reads_in_blocks() -> None:
    values = np.round(RAMP * 32768).astype("<i2")
    reader = WavReader(io.BytesIO(wav_file(values, tag=1, bits=16)))
    assert [len(block) for block in reader.blocks(400)] == [400, 400, 201]
