"""Twice the load that the llm service can serve, with clients that leave and die."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report import BENCH
from bench.soak import soak

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(0)]

MEMORY_GROWTH = 0.01
"""Share by which resident memory may grow after the warm-up."""


async def test_nothing_is_lost_or_left_behind(
    tmp_path: Path, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
):
    seconds: float = pytestconfig.getoption("--soak-seconds")

    def tell(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    found = await soak(seconds, tmp_path, tell)
    tell(f"results: {found.write(BENCH / 'results')}")
    assert found.requests["lost"] == 0, found.lost
    assert found.requests["completed"] > 0
    assert found.requests["cancelled"] > 0
    assert found.errors.get("DEADLINE", 0) > 0
    assert found.killed > 0
    assert found.unexpected == []
    assert found.refused > 0
    assert found.refusals_without_retry == 0
    assert found.entries_after == found.entries_before
    assert found.in_flight_after == 0
    assert found.worker_restarts == 0
    assert found.memory_growth <= MEMORY_GROWTH
