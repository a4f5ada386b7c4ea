"""`antiphon keys` makes, shows and ends keys of the store."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from antiphon_cli.commands.keys import app
from antiphon_core.errors import AntiphonError
from antiphon_gateway.identity.keys import KeyRecord, digest_of
from antiphon_gateway.quota.usage import UsageKey, Used
from antiphon_gateway.store.settings import StoreSettings
from antiphon_gateway.store.storage import Storage
from typer.testing import CliRunner, Result


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "suite.toml"
    path.write_text(f'[gateway.store]\ndirectory = "{tmp_path / "store"}"\n')
    return path


def run(config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--config", str(config)])


def stored(config: Path, key: str) -> KeyRecord | None:
    async def find() -> KeyRecord | None:
        storage = Storage(StoreSettings(directory=config.parent / "store"))
        await storage.store.open()
        try:
            return await storage.keys.find(digest_of(key))
        finally:
            await storage.close()

    return asyncio.run(find())


def test_a_key_from_its_making_to_its_end(config: Path) -> None:
    grants = ("--tenant", "acme", "--scope", "files", "--model", "m", "--days", "2")
    limits = ("--tokens-per-day", "5", "--priority", "batch")
    made = run(config, "create", "--name", "ci", *grants, *limits)
    assert made.exit_code == 0, made.output
    key = made.stdout.strip()
    record = stored(config, key)
    assert record is not None and record.principal.tenant == "acme"
    assert (record.scopes, record.models, record.priority) == (("files",), ("m",), "batch")
    assert record.limits.tokens_per_day == 5 and record.limits.concurrency is None
    assert record.expires_at == pytest.approx(time.time() + 2 * 24 * 3600, abs=60)
    listed = run(config, "list").stdout
    assert digest_of(key)[:12] in listed and key not in listed
    assert run(config, "revoke", digest_of(key)[:12]).exit_code == 0
    record = stored(config, key)
    assert record is not None and record.revoked_at is not None
    again = run(config, "revoke", digest_of(key)[:12])
    assert isinstance(again.exception, AntiphonError)


def test_the_account_of_a_day(config: Path) -> None:
    async def charge() -> None:
        storage = Storage(StoreSettings(directory=config.parent / "store"))
        await storage.store.open()
        place = UsageKey("2026-01-02", "acme", "abc", "small")
        await storage.quotas.add_usage({place: Used(3, 1234, 5, 77, 1.25)})
        await storage.close()

    asyncio.run(charge())
    shown = run(config, "usage", "--day", "2026-01-02").stdout
    assert all(text in shown for text in ("acme", "abc", "small", "1234", "77", "1.2"))
    assert "acme" not in run(config, "usage").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "--scope", "everything"),
        ("create", "--tenant", "a b"),
        ("create", "--tokens-per-day", "0"),
        ("revoke", "123"),
    ],
)
def test_wrong_arguments_are_said(config: Path, arguments: tuple[str, ...]) -> None:
    result = run(config, *arguments)
    assert isinstance(result.exception, AntiphonError)
    assert not (config.parent / "store").exists()
