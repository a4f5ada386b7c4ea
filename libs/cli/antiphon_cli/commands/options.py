"""Options that several commands share, and the way they run a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import httpx
import typer

from antiphon_cli.suite.settings import DEFAULT_PORT
from antiphon_cli.talk.http import open_client, unreachable

Url = Annotated[str, typer.Option("--url", help="Base URL of the suite.")]
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="The suite's TOML or YAML file.", exists=True)
]
Port = Annotated[
    int | None, typer.Option("--port", help="Port of the edge; eight further ports follow it.")
]
LlmModel = Annotated[
    str,
    typer.Option("--llm-model", help="Language model: a name, a .gguf file or a directory."),
]


def with_client(url: str, work: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    """Runs ``work`` with a client of the suite; says how to start one when none answers."""

    async def run() -> None:
        async with open_client(url) as client:
            try:
                await work(client)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                raise unreachable(url, error) from None

    asyncio.run(run())
