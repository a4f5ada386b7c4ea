"""`antiphon keys`: API keys in the gateway's store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer
from antiphon_core.config import load_settings
from antiphon_core.errors import InvalidArgument, NotFound
from rich.console import Console
from rich.table import Table

from antiphon_cli.commands.options import ConfigFile
from antiphon_cli.suite.settings import EdgeSettings

if TYPE_CHECKING:
    from antiphon_gateway.identity.keys import KeyRecord
    from antiphon_gateway.store.keys import KeyTable
    from antiphon_gateway.store.storage import Storage

Result = TypeVar("Result")
_SHORTEST_ID = 8
_DAY_SECONDS = 24 * 3600

app = typer.Typer(no_args_is_help=True, help="API keys in the gateway's store.")

Names = Annotated[list[str] | None, typer.Option(help="Repeat for several; none allows all.")]


@app.callback()
def group() -> None:
    """API keys in the gateway's store; it accepts them with identity.stored_keys = true."""


@app.command()
def create(
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    tenant: Annotated[str, typer.Option(help="Whose files, batches and caches it uses.")] = "",
    scope: Annotated[
        list[str] | None, typer.Option(help="Repeat for several; none grants what users need.")
    ] = None,
    model: Names = None,
    voice: Names = None,
    days: Annotated[int | None, typer.Option(min=1, help="Life in days; none is for good.")] = None,
    priority: Annotated[
        Literal["interactive", "batch"], typer.Option(help="The highest its requests may have.")
    ] = "interactive",
    requests_per_second: Annotated[float | None, typer.Option(help="Rate of requests.")] = None,
    tokens_per_second: Annotated[float | None, typer.Option(help="Rate of tokens.")] = None,
    tokens_per_day: Annotated[int | None, typer.Option(help="Tokens a day.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests at a time.")] = None,
    config: ConfigFile = None,
) -> None:
    """Make a key and print it; it cannot be shown again."""
    import msgspec
    from antiphon_gateway.identity.keys import KeyRecord, digest_of, key_id, new_key

    key, now = new_key(), int(time.time())
    limits = {
        "requests_per_second": requests_per_second,
        "tokens_per_second": tokens_per_second,
        "tokens_per_day": tokens_per_day,
        "concurrency": concurrency,
    }
    given = {
        "sha256": digest_of(key),
        "name": name,
        "tenant": tenant,
        "scopes": scope or None,
        "models": model or None,
        "voices": voice or None,
        "priority": priority,
        "limits": limits,
        "created_at": now,
        "expires_at": None if days is None else now + days * _DAY_SECONDS,
    }
    try:
        fields = {name: value for name, value in given.items() if value is not None}
        record = msgspec.convert(fields, KeyRecord)
    except msgspec.ValidationError as error:
        raise InvalidArgument(str(error)) from None
    _with_keys(config, lambda keys: keys.add(record))
    typer.echo(f"key {key_id(record.sha256)} made; it is shown only now:", err=True)
    typer.echo(key)


@app.command("list")
def list_command(config: ConfigFile = None) -> None:
    """Show the keys by their ids; the keys themselves are nowhere."""
    from antiphon_gateway.identity.keys import key_id

    table = Table("id", "name", "tenant", "scopes", "made", "state")
    for record in _with_keys(config, lambda keys: keys.list()):
        scopes = ", ".join(sorted(record.scopes))
        made = _day(record.created_at)
        table.add_row(
            key_id(record.sha256), record.name, record.tenant, scopes, made, _state(record)
        )
    Console().print(table)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The id, as `antiphon keys list` shows it.")],
    config: ConfigFile = None,
) -> None:
    """End a key; every gateway refuses it within five seconds."""
    if len(key_id) < _SHORTEST_ID:
        raise InvalidArgument(f"give at least {_SHORTEST_ID} digits of the id")
    if not _with_keys(config, lambda keys: keys.revoke(key_id, int(time.time()))):
        raise NotFound(f"no key {key_id!r} that is not revoked already")
    typer.echo(f"key {key_id} revoked", err=True)


@app.command()
def usage(
    day: Annotated[str, typer.Option(help="YYYY-MM-DD in UTC; today by default.")] = "",
    config: ConfigFile = None,
) -> None:
    """Show what was used on a day, by tenant, key and model."""
    from antiphon_gateway.quota.usage import today

    rows = _with_storage(config, lambda storage: storage.quotas.usage_of(day or today()))
    table = Table("tenant", "key", "model", "requests", "prompt", "cached", "output", "audio s")
    for place, used in rows:
        counts = (used.requests, used.prompt_tokens, used.cached_tokens, used.output_tokens)
        audio = f"{used.audio_seconds:.1f}"
        table.add_row(place.tenant, place.key_id, place.model, *map(str, counts), audio)
    Console().print(table)


def _with_keys(config: Path | None, work: Callable[[KeyTable], Awaitable[Result]]) -> Result:
    return _with_storage(config, lambda storage: work(storage.keys))


def _with_storage(config: Path | None, work: Callable[[Storage], Awaitable[Result]]) -> Result:
    """Runs the work on the configured store, or on the suite's own."""
    from antiphon_core.logs import configure_logging
    from antiphon_gateway.config import GatewaySettings
    from antiphon_gateway.store.settings import StoreSettings
    from antiphon_gateway.store.storage import Storage

    configure_logging("cli", "warning")  # stdout is for the key
    settings = load_settings(GatewaySettings, section="gateway", config_file=config).store
    if not settings.is_configured:
        edge = load_settings(EdgeSettings, section="edge", config_file=config)
        settings = StoreSettings(directory=edge.store_directory)

    async def run() -> Result:
        storage = Storage(settings)
        try:
            await storage.store.open()
            return await work(storage)
        finally:
            await storage.close()

    return asyncio.run(run())


def _state(record: KeyRecord) -> str:
    if record.revoked_at is not None:
        return f"revoked {_day(record.revoked_at)}"
    if record.expires_at is None:
        return "good"
    word = "expired" if record.expires_at <= time.time() else "good until"
    return f"{word} {_day(record.expires_at)}"


def _day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()
