"""`antiphon models`: what a suite serves."""

from __future__ import annotations

import httpx
from rich.console import Console
from rich.table import Table

from antiphon_cli.commands.options import DEFAULT_URL, Url, with_client
from antiphon_cli.talk.http import raise_for_error


def command(url: Url = DEFAULT_URL) -> None:
    """List served models and voices."""

    async def work(client: httpx.AsyncClient) -> None:
        table = Table("kind", "id", "about")
        response = await client.get("/v1/models")
        await raise_for_error(response)
        for model in response.json()["data"]:
            about = ", ".join(
                f"{key} {model[key]}"
                for key in ("max_context", "capabilities", "modalities")
                if model.get(key)
            )
            table.add_row("model", model["id"], about)
        response = await client.get("/v1/audio/voices")
        await raise_for_error(response)
        for voice in response.json()["data"]:
            table.add_row("voice", voice["id"], voice.get("name") or "")
        Console().print(table)

    with_client(url, work)
