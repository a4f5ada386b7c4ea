"""What is warm when the speech process says that it is ready: both stages of its default voice."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import pytest
from antiphon_vocoder.engine import voices
from antiphon_vocoder.engine.__main__ import serve
from antiphon_vocoder.engine.stream import window_stops
from antiphon_vocoder.messages import EngineConfig, EngineReady, Stop, VoiceFile
from antiphon_vocoder.tts.piper import PiperVoice
from antiphon_vocoder.voices import load_catalog


@pytest.fixture(scope="module")
def file() -> VoiceFile:
    return load_catalog(None, "").default.file


class Front:
    """Starts the process, stops it, and keeps what was done and said meanwhile, in order."""

    def __init__(self, config: EngineConfig) -> None:
        self._inbox: list[object] = [config, Stop()]
        self.seen: list[Any] = []

    def wait(self, _timeout: float | None) -> None:
        pass

    def drain(self) -> list[object]:
        messages, self._inbox = self._inbox, []
        return messages

    def send(self, message: object) -> None:
        self.seen.append(message)


def test_the_default_voice_has_spoken_before_readiness(
    file: VoiceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real voice, watched: short and long clauses, each encoded and decoded in windows."""
    config = EngineConfig(voices=[file], workers=1, threads=1, lead_seconds=1.0, gain=1.0)
    front = Front(config)

    class Watched(PiperVoice):
        def encode(self, phoneme_ids: Any, **how: Any) -> Any:
            latent = super().encode(phoneme_ids, **how)
            front.seen.append(("encode", len(phoneme_ids)))
            return latent

        def decode(self, latent: Any, start: int, stop: int) -> Any:
            samples = super().decode(latent, start, stop)
            front.seen.append(("decode", len(samples) / self.sample_rate))
            return samples

    monkeypatch.setattr(voices, "PiperVoice", Watched)
    serve(front)  # pyright: ignore[reportArgumentType]
    ready = next(place for place, one in enumerate(front.seen) if isinstance(one, EngineReady))
    assert front.seen[ready].windowed
    done = [one for one in front.seen[:ready] if isinstance(one, tuple)]
    assert len(done) == len([one for one in front.seen if isinstance(one, tuple)])
    encoded = [size for stage, size in done if stage == "encode"]
    assert min(encoded) < 60 < 200 < max(encoded)
    windows = [seconds for stage, seconds in done if stage == "decode"]
    # An utterance begins with 0.35 s; a clause's last window may be half as long again as 1.1 s.
    assert min(windows) < 0.5
    assert max(windows) > 1.4


@pytest.mark.slow
def test_the_first_clause_costs_what_later_ones_cost(file: VoiceFile) -> None:
    """By CPU time, which other processes lengthen least; the better half of several boots."""
    ids = [
        1,
        0,
        *(int(s) for pair in np.random.default_rng(1).integers(14, 100, 60) for s in (pair, 0)),
        2,
    ]
    ratios: list[float] = []
    for _ in range(5):
        voice = voices.LoadedVoices([file], 1).get(file.id)
        voices.warm_up(voice)
        seconds = []
        for _ in range(8):
            started = time.process_time()
            latent = voice.encode(ids, speed=1.0, noiseless=True)
            rate = voice.sample_rate / voice.samples_per_frame
            voice.decode(latent, 0, window_stops(latent.frames, rate, first=True)[0])
            seconds.append(time.process_time() - started)
        ratios.append(seconds[0] / statistics.median(seconds[1:]))
    assert statistics.median_low(ratios) <= 1.2, ratios
