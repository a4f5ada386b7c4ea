"""`antiphon chat`: a conversation in the terminal."""

from __future__ import annotations

from typing import Annotated

import httpx
import typer
from rich.console import Console

from antiphon_cli.commands.options import DEFAULT_URL, Url, with_client
from antiphon_cli.talk.chat import stream_chat


def command(
    message: Annotated[str, typer.Argument(help="One message; without it, a conversation.")] = "",
    url: Url = DEFAULT_URL,
    system: Annotated[str, typer.Option(help="System message.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.7,
    seed: Annotated[int | None, typer.Option(help="Same seed, same answer.")] = None,
) -> None:
    """Chat with the language model; the answer streams as it is made."""
    console = Console()
    history = [{"role": "system", "content": system}] if system else []
    parameters = {"max_tokens": max_tokens, "temperature": temperature}
    if seed is not None:
        parameters["seed"] = seed

    async def turn(client: httpx.AsyncClient, text: str) -> None:
        history.append({"role": "user", "content": text})
        answer = await stream_chat(
            client,
            history,
            on_text=lambda piece: console.print(piece, end="", markup=False, highlight=False),
            **parameters,
        )
        history.append({"role": "assistant", "content": answer.text})
        console.print(
            f"\n[dim]{answer.tokens} tokens, first after "
            f"{answer.time_to_first_token * 1000:.0f} ms, {answer.tokens_per_second:.0f}/s[/dim]"
        )

    async def converse(client: httpx.AsyncClient) -> None:
        if message:
            await turn(client, message)
            return
        while True:
            try:
                text = console.input("[bold]you> [/bold]").strip()
            except (EOFError, KeyboardInterrupt):
                return
            if text:
                await turn(client, text)

    with_client(url, converse)
