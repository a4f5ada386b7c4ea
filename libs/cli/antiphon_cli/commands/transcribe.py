"""`antiphon transcribe`: an audio file to text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import httpx
import typer
from antiphon_core.errors import InvalidArgument

from antiphon_cli.commands.options import DEFAULT_URL, Url, with_client
from antiphon_cli.talk.speech import transcribe


def command(
    path: Annotated[Path, typer.Argument(help="Audio in any common container.")],
    language: Annotated[str, typer.Option(help="ISO 639-1 code; empty detects.")] = "",
    url: Url = DEFAULT_URL,
) -> None:
    """Print what an audio file says."""
    if not path.is_file():
        raise InvalidArgument(f"{path}: no such file", field="path")

    async def work(client: httpx.AsyncClient) -> None:
        typer.echo(await transcribe(client, path.read_bytes(), path.name, language=language))

    with_client(url, work)
