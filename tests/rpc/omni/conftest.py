"""An llm service and a vocoder service, each with its real process, behind a gateway."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.speech_model import small_codec, speech_model

sys.path.insert(0, str(Path(__file__).parent))

from omni_bench import OmniBench


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def omni(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OmniBench]:
    """One suite a module: its two processes take seconds to start."""
    root = tmp_path_factory.mktemp("omni")
    codec = small_codec(root / "codec")
    model = speech_model(root / "talker")
    async with OmniBench.running(root, model, root / "codec", codec) as made:
        yield made
