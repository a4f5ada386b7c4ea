"""Ten minutes of speech and recognition at once, and streams that are an hour long."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

import pytest

from bench.report import BENCH
from bench.speech_service import TEXTS, speak, speech_service
from bench.speech_soak import soak

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(0)]

MEMORY_GROWTH = 0.01
"""Share by which resident memory may grow after the warm-up."""


async def test_nothing_runs_dry_below_capacity_and_nothing_is_left_behind(
    tmp_path: Path, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
):
    seconds = float(pytestconfig.getoption("--soak-seconds") or 0)

    def tell(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    found = await soak(seconds, tmp_path, tell)
    tell(f"results: {found.write(BENCH / 'results')}")
    assert found.below["done"] > 0
    assert found.below.get("underruns", 0) == 0
    assert found.below.get("refused", 0) == 0
    assert found.above.get("refused", 0) > 0
    assert found.above.get("without_retry", 0) == 0
    for outcome in (found.below, found.above, found.heard):
        assert outcome.get("lost", 0) == 0
        assert not [name for name in outcome if name.startswith("error")]
    assert found.heard["texts"] > 0
    assert found.heard.get("invented", 0) == 0
    assert found.slots_left == 0
    assert found.memory_growth <= MEMORY_GROWTH


async def test_an_hour_of_one_voice_leaves_memory_flat(tmp_path: Path, pytestconfig: pytest.Config):
    """As many seconds of audio as six times --soak-seconds, as fast as it is spoken."""
    wanted = 6 * float(pytestconfig.getoption("--soak-seconds") or 0)
    async with speech_service(tmp_path, "--max-stream-s", "7200") as service:
        short = (await speak(service, [" ".join(TEXTS)])).seconds
        memory: list[int] = []

        async def watch() -> None:
            while True:
                memory.append(service.resident_bytes())
                await asyncio.sleep(0.5)

        watching = asyncio.create_task(watch())
        rounds = int(wanted / short) + 1
        spoken = await speak(service, [f"{' '.join(TEXTS)} "] * rounds, keep=False)
        watching.cancel()
        assert (spoken.error, spoken.finished) == ("", 1)
        assert spoken.seconds > 0.9 * wanted
    tenth = max(1, len(memory) // 10)
    warm, end = statistics.mean(memory[4 * tenth : 5 * tenth]), statistics.mean(memory[-tenth:])
    assert end <= warm * (1 + MEMORY_GROWTH)
