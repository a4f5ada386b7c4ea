"""The resampler: any cut is bit-equal to the whole, no alias, no drift, short delay."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from antiphon_core.errors import InvalidArgument
from antiphon_vocoder.formats import Encoding
from antiphon_vocoder.formats.pcm import RawDecoder, decode_g711, encode_g711, pcm16_from_float
from antiphon_vocoder.formats.resample import Resampler, resample
from hypothesis import given, settings
from hypothesis import strategies as st

RATES = [
    (24000, 16000),
    (22050, 24000),
    (22050, 48000),
    (48000, 8000),
    (44100, 47999),
    (8000, 8000),
]


def tone(frequency: float, rate: int, seconds: float) -> np.ndarray:
    return np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(RATES),
    st.integers(0, 4000),
    st.lists(st.integers(0, 4000), max_size=12),
    st.integers(0, 2**32 - 1),
)
def test_any_cut_is_bit_equal_to_the_whole(
    rates: tuple[int, int], length: int, cuts: list[int], seed: int
) -> None:
    signal = np.random.default_rng(seed).standard_normal(length).astype(np.float32)
    whole = resample(signal, *rates)
    assert len(whole) == -(-length * rates[1] // rates[0])
    resampler = Resampler(*rates)
    edges = [0, *sorted(min(cut, length) for cut in cuts), length]
    parts = [resampler.process(signal[a:b]) for a, b in itertools.pairwise(edges)]
    parts.append(resampler.flush())
    assert np.array_equal(np.concatenate(parts), whole)
    # A flushed resampler is a new one.
    again = np.concatenate((resampler.process(signal), resampler.flush()))
    assert np.array_equal(again, whole)


def test_a_tone_above_the_new_nyquist_stays_below_45_db() -> None:
    output = resample(tone(10_000, 24000, 2), 24000, 16000)[100:-100]
    level = 20 * np.log10(np.sqrt(np.mean(output**2)) / np.sqrt(0.5))
    assert level < -45


def test_a_tone_in_the_band_keeps_level_and_phase() -> None:
    output = resample(tone(1000, 24000, 1), 24000, 16000)
    expected = tone(1000, 16000, 1)
    assert np.abs(output - expected)[100:-100].max() < 1e-3


def test_no_drift_in_300_seconds() -> None:
    resampler = Resampler(24000, 16000)
    block = np.zeros(24000, np.float32)
    total = sum(len(resampler.process(block)) for _ in range(300))
    assert total + len(resampler.flush()) == 300 * 16000


def test_delay_is_at_most_half_a_millisecond_at_24_khz() -> None:
    for target in (8000, 16000, 22050, 48000):
        resampler = Resampler(24000, target)
        missing = target - len(resampler.process(np.zeros(24000, np.float32)))
        limit = 0.0005 if target >= 16000 else 0.001
        assert missing / target <= limit


def test_bad_rates() -> None:
    with pytest.raises(ValueError, match="positive"):
        Resampler(0, 16000)


def test_pcm16_bytes_in_any_cut_carry_the_odd_byte() -> None:
    samples = pcm16_from_float(tone(440, 22050, 0.3))
    data = samples.tobytes()
    whole = RawDecoder(Encoding.PCM16, 22050, 16000)
    expected = np.concatenate((whole.decode(data), whole.flush()))
    cut = RawDecoder(Encoding.PCM16, 22050, 16000)
    parts = [cut.decode(data[i : i + 777]) for i in range(0, len(data), 777)]
    assert np.array_equal(np.concatenate((*parts, cut.flush())), expected)


@pytest.mark.parametrize(
    ("encoding", "rate", "field"),
    [
        (Encoding.MP3, 16000, "format.encoding"),
        (Encoding.PCMU, 16000, "format.sample_rate_hz"),
        (Encoding.PCM16, 4000, "format.sample_rate_hz"),
        (Encoding.PCM16, 96000, "format.sample_rate_hz"),
    ],
)
def test_raw_formats_that_are_refused(encoding: Encoding, rate: int, field: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        RawDecoder(encoding, rate, 16000)
    assert error.value.field == field


@pytest.mark.parametrize("encoding", [Encoding.PCMU, Encoding.PCMA])
def test_g711_round_trip_is_within_its_step(encoding: Encoding) -> None:
    samples = np.arange(-32768, 32768, 7, dtype=np.int16)
    back = decode_g711(encode_g711(samples, encoding), encoding).astype(np.int32)
    assert np.all(np.abs(back - samples) <= np.maximum(np.abs(samples.astype(np.int32)) / 16, 40))
    codes = bytes(range(256))
    again = decode_g711(encode_g711(decode_g711(codes, encoding), encoding), encoding)
    assert np.array_equal(again, decode_g711(codes, encoding))
