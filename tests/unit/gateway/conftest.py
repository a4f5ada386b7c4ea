"""Stores of both kinds for the gateway's unit tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon_gateway.store.settings import StoreSettings
from antiphon_gateway.store.storage import Storage
from support.postgres import Server, binaries, running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One server for all tests; each test has its own rows by its own names."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with running_server() as server:
        yield server


@pytest_asyncio.fixture(params=["sqlite", "postgresql"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    """An open store."""
    url = request.getfixturevalue("postgres").url if request.param == "postgresql" else ""
    made = Storage(StoreSettings(directory=tmp_path, url=url, timeout_seconds=30.0))
    await made.store.open()
    yield made
    await made.close()
