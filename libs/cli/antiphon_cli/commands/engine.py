"""`antiphon cache`, `antiphon sleep` and `antiphon wake`: the language model's engine."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from antiphon_cli.suite import clients
from antiphon_cli.suite.plan import LOOPBACK, Ports
from antiphon_cli.suite.settings import DEFAULT_PORT

cache = typer.Typer(no_args_is_help=True, help="The language model's prefix cache.")

Target = Annotated[str, typer.Option("--llm", help="host:port of the language-model service.")]
DEFAULT_TARGET = f"{LOOPBACK}:{Ports(DEFAULT_PORT).llm}"


@cache.callback()
def group() -> None:
    """The language model's prefix cache."""


@cache.command()
def flush(
    tenant: Annotated[
        str | None, typer.Option(help="Only this tenant's; without it, everybody's.")
    ] = None,
    llm: Target = DEFAULT_TARGET,
) -> None:
    """Forget cached prompt prefixes; running requests are not touched."""
    entries, size = asyncio.run(clients.flush_prefix_cache(llm, tenant))
    typer.echo(f"{entries} entries are free ({_mebibytes(size)})")


def sleep(
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for running requests; the default is 60.")
    ] = None,
    llm: Target = DEFAULT_TARGET,
) -> None:
    """Let running requests end, refuse new ones and give the model's memory back."""
    released = asyncio.run(clients.sleep(llm, timeout))
    typer.echo(f"asleep; {_mebibytes(released)} given back")


def wake(llm: Target = DEFAULT_TARGET) -> None:
    """Serve again after `antiphon sleep`."""
    asyncio.run(clients.wake(llm))
    typer.echo("awake")


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
