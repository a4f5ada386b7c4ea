"""Stable prefixes, hysteresis, detectors, features and the cut point."""

from __future__ import annotations

import numpy as np
import pytest
from antiphon_core.errors import InvalidArgument
from antiphon_vocoder.recognition.history import AudioHistory, quietest_point
from antiphon_vocoder.recognition.stability import StablePrefix
from antiphon_vocoder.recognition.vad import DetectorSet
from antiphon_vocoder.recognition.vad import silero as silero_module
from antiphon_vocoder.recognition.vad.detector import RATE, WINDOW
from antiphon_vocoder.recognition.vad.energy import EnergyDetector
from antiphon_vocoder.recognition.vad.hysteresis import Edge, Hysteresis
from antiphon_vocoder.recognition.vad.silero import SileroDetector
from antiphon_vocoder.recognition.whisper.features import LogMel
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recognition.piper_speech import SENTENCES, silence, speak


def run_windows(detector, audio: np.ndarray) -> np.ndarray:
    state = detector.new_state()
    windows = audio[: len(audio) // WINDOW * WINDOW].reshape(-1, 1, WINDOW)
    return np.array([detector.score(window, [state])[0] for window in windows])


def test_the_stable_prefix_is_what_two_hypotheses_agree_on() -> None:
    stable = StablePrefix()
    assert stable.feed("the quick") == ("the quick", 0)
    assert stable.feed("the quick brown fox") == ("the quick brown fox", 9)
    assert stable.feed("the quick brownie fox") == ("the quick brownie fox", 9)
    assert stable.feed("the quick brawn fox") == ("the quick brawn fox", 9)
    assert stable.feed("a quick brawn fox") is None
    assert stable.feed("the quick brawn fox jumps") == ("the quick brawn fox jumps", 19)


@given(st.lists(st.text(alphabet="ab ", max_size=12), max_size=8))
def test_stable_characters_are_never_taken_back(texts: list[str]) -> None:
    stable = StablePrefix()
    kept = ""
    for text in texts:
        published = stable.feed(text)
        if published is not None:
            assert published[0].startswith(kept)
            assert published[1] >= len(kept)
            kept = text[: published[1]]


def test_speech_stops_only_below_the_lower_threshold() -> None:
    machine = Hysteresis(threshold=0.5, silence_ms=96)
    edges = [
        machine.feed(probability, (index + 1) * WINDOW)
        for index, probability in enumerate([0.6, 0.6, 0.5, 0.6, 0.6, 0.6, 0.4, 0.36, 0.3, 0.1])
    ]
    assert edges[5] is Edge.STARTED
    assert machine.voice_start == 3 * WINDOW
    assert edges[6:] == [Edge.NONE] * 4
    assert machine.feed(0.2, 11 * WINDOW) is Edge.STOPPED
    assert machine.voice_end == 8 * WINDOW


def test_speech_of_the_lowest_threshold_stops_in_silence() -> None:
    machine = Hysteresis(threshold=0.0, silence_ms=100)
    edges = [machine.feed(0.3, (i + 1) * WINDOW) for i in range(3)]
    edges += [machine.feed(0.001, (i + 4) * WINDOW) for i in range(5)]
    assert Edge.STARTED in edges and Edge.STOPPED in edges


def test_silero_hears_speech_and_ignores_silence_noise_and_tones() -> None:
    detector = SileroDetector()
    assert (run_windows(detector, speak(SENTENCES[0])) > 0.5).mean() > 0.7
    time = np.arange(3 * RATE) / RATE
    noise = np.random.default_rng(0).normal(0, 0.1, 3 * RATE)
    for sound in (silence(3), noise, 0.3 * np.sin(2 * np.pi * 440 * time)):
        assert (run_windows(detector, sound.astype(np.float32)) > 0.5).mean() < 0.05


def test_silero_in_a_batch_is_silero_alone() -> None:
    detector = SileroDetector()
    streams = [speak(text)[: 60 * WINDOW].reshape(-1, WINDOW) for text in SENTENCES[:3]]
    count = min(map(len, streams))
    states = [detector.new_state() for _ in streams]
    together = np.array(
        [detector.score(np.stack([s[i] for s in streams]), states) for i in range(count)]
    )
    for column, stream in enumerate(streams):
        alone = run_windows(detector, stream[:count].reshape(-1))
        assert np.allclose(together[:, column], alone, atol=1e-4)


def test_energy_is_even_at_its_reference_loudness() -> None:
    detector = EnergyDetector()
    level = np.full((1, WINDOW), 0.02, np.float32)
    assert detector.score(level, [detector.new_state()])[0] == pytest.approx(0.5)
    assert detector.score(level * 0, [detector.new_state()])[0] == 0


def test_auto_degrades_to_energy_and_an_explicit_silero_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(silero_module, "_FILE", "missing.onnx")
    detectors = DetectorSet()
    detector, fallback = detectors.resolve("auto")
    assert (detector.name, fallback) == ("energy", True)
    assert detectors.resolve("energy")[1] is False
    with pytest.raises(InvalidArgument, match="silero cannot load") as caught:
        detectors.resolve("silero")
    assert caught.value.reason == "UNSUPPORTED_OPTION"
    assert caught.value.field == "turn_detection.detector"


def test_log_mel_has_whispers_range_and_ignores_what_is_cut_off() -> None:
    audio = speak(SENTENCES[1])
    log_mel = LogMel(80)
    features = log_mel(audio, 100)
    assert features.shape == (80, 100) and features.dtype == np.float32
    assert features.max() - features.min() <= 2.0 + 1e-5
    assert np.array_equal(features, log_mel(audio[: 100 * 160], 100))
    tone = np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE).astype(np.float32)
    # 1 kHz is 15 mel of 45.2, that is band 26 of 80.
    assert abs(int(log_mel(tone, 50)[:, 25].argmax()) - 26) <= 1


def test_history_gives_back_what_it_was_given() -> None:
    history = AudioHistory()
    signal = np.random.default_rng(3).normal(size=200_000).astype(np.float32)
    for first in range(0, len(signal), 7_919):
        history.append(signal[first : first + 7_919])
        history.forget_before(history.end - 30_000)
        kept = history.view(history.start, history.end)
        assert np.array_equal(kept, signal[history.start : history.end])
    with pytest.raises(ValueError, match="outside"):
        history.view(0, 10)


def test_the_quietest_point_is_inside_the_gap() -> None:
    audio = np.ones(5 * RATE, np.float32)
    audio[3 * RATE : 3 * RATE + 1600] = 0.1
    assert 3 * RATE <= quietest_point(audio) <= 3 * RATE + 1600
