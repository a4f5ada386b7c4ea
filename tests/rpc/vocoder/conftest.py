"""A speech service with a scripted voice; makes the bench importable under importlib mode."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from speech_bench import SpeechBench, ToneVoice, running


@pytest.fixture
def voice() -> ToneVoice:
    return ToneVoice()


@pytest.fixture
async def bench(voice: ToneVoice) -> AsyncIterator[SpeechBench]:
    async with running(voice, slots=4, queue_limit=2, stream_idle_s=0.6, progress_s=0.3) as made:
        yield made
