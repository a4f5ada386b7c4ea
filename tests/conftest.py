"""Fixtures that every level of tests shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.suite import RunningSuite, start_suite, stop_suite

SUITE_USERS = (
    "tests/clients/",
    "tests/e2e/test_aborts.py",
    "tests/e2e/test_envoy.py",
    "tests/faults/",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of single tests."""
    parser.addoption(
        "--soak-seconds", type=float, default=600.0, help="load time of the engine's soak"
    )
    parser.addoption(
        "--spoken-clips", type=Path, help="speech of bench.spoken_clips, in place of the voice"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers share out files, whose fixtures are made once; one has all users of the suite."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return "suite" if path.startswith(SUITE_USERS) else path

    return Files(config, log)


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSuite]:
    """One suite on the default real models for the whole session."""
    run_dir = tmp_path_factory.mktemp("suite")
    adapters = run_dir / "adapters"
    adapters.mkdir()
    # Drawn replies now and then end at once or never, which no client's test is about.
    config = f'[llm]\nadapters_dir = "{adapters}"\n[gateway.realtime]\ntemperature = 0\n'
    running, process = start_suite(run_dir, config)
    try:
        running.wait_ready()
        yield running
    except TimeoutError as error:
        logs = {path.name: path.read_text()[-2000:] for path in running.run_dir.glob("*.log")}
        raise RuntimeError(f"{error}; {logs}") from None
    finally:
        stop_suite(process)
