"""The audio helpers and the error rate that every printed figure rests on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from antiphon_cli.talk.audio import (
    REALTIME_RATE,
    end_of_speech,
    from_pcm16,
    read_wav,
    to_pcm16,
    write_wav,
)
from antiphon_cli.talk.speech import word_error_rate
from antiphon_core.errors import InvalidArgument


def test_pcm_survives_the_round_trip_and_clips():
    samples = np.array([0.0, 0.5, -1.0, 2.0, -2.0], np.float32)
    back = from_pcm16(to_pcm16(samples))
    assert back == pytest.approx([0.0, 0.5, -1.0, 32767 / 32768, -1.0])
    assert from_pcm16(b"\x00\x40\x01").tolist() == [0.5]


def test_a_wav_is_resampled_and_mixed_to_mono(tmp_path: Path):
    path = tmp_path / "tone.wav"
    time = np.arange(8000, dtype=np.float32) / 8000
    write_wav(path, 0.5 * np.sin(2 * np.pi * 440 * time).astype(np.float32), 8000)
    samples = read_wav(path)
    assert abs(len(samples) - REALTIME_RATE) <= 2
    assert 0.45 < np.abs(samples).max() < 0.55


@pytest.mark.parametrize("content", [b"", b"not a wav file at all", b"RIFF\x00\x00\x00\x00WAVE"])
def test_a_broken_wav_is_named(content: bytes, tmp_path: Path):
    path = tmp_path / "broken.wav"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"broken\.wav"):
        read_wav(path)


def test_the_end_of_speech_is_the_last_loud_sample():
    samples = np.zeros(1000, np.float32)
    assert end_of_speech(samples) == 0
    samples[100:300] = 0.5
    samples[600] = 0.001
    assert end_of_speech(samples) == 300


@pytest.mark.parametrize(
    ("heard", "rate"),
    [
        ("the quick brown fox", 0.0),
        ("The quick, brown fox!", 0.0),
        ("the quick fox", 0.25),
        ("the quick brown fox jumps", 0.25),
        ("", 1.0),
        ("  ", 1.0),
    ],
)
def test_word_error_rate_ignores_case_and_punctuation(heard: str, rate: float):
    assert word_error_rate("The quick brown fox.", heard) == rate
