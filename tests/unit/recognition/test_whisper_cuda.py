"""The batch engine on a CUDA device against the processor.

Such a machine may lack the packaged voice: ``--spoken-clips FILE`` brings its sentences.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from antiphon_vocoder.recognition.messages import DecodeOptions
from antiphon_vocoder.recognition.whisper.opening import EngineOptions, open_recognizer

from bench.spoken_clips import read_clips, spoken_clips
from bench.whisper_checkpoints import converted_checkpoint

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def clips(request: pytest.FixtureRequest) -> list[np.ndarray]:
    file = request.config.getoption("--spoken-clips")
    return read_clips(file) if file else spoken_clips()


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_device_hears_what_the_processor_hears_alone_and_in_a_batch(
    checkpoint: Path, clips: list[np.ndarray], dtype: str
) -> None:
    options = DecodeOptions(words=True)
    host = open_recognizer(checkpoint)
    device = open_recognizer(checkpoint, EngineOptions(device="cuda", dtype=dtype))  # type: ignore[arg-type]
    try:
        wanted = [host.transcribe(clip, options) for clip in clips]
        alone = [device.transcribe(clip, options) for clip in clips]
        with ThreadPoolExecutor(device.lanes) as pool:
            together = list(pool.map(lambda clip: device.transcribe(clip, options), clips))
    finally:
        host.close()
        device.close()
    assert [one.text for one in together] == [one.text for one in alone]
    differing = sum(a.text != b.text for a, b in zip(alone, wanted, strict=True))
    assert differing <= (0 if dtype == "fp32" else 1)
    for ours, theirs in zip(alone, wanted, strict=True):
        if ours.text == theirs.text:
            assert ours.confidence == pytest.approx(theirs.confidence, abs=0.05)
            for mine, other in zip(ours.segments[0].words, theirs.segments[0].words, strict=True):
                assert abs(mine.start_ms - other.start_ms) <= 60
