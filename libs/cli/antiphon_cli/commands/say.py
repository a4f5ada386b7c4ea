"""`antiphon say`: text to an audio file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import httpx
import typer
from antiphon_core.errors import InvalidArgument
from rich.console import Console

from antiphon_cli.commands.options import DEFAULT_URL, Url, with_client
from antiphon_cli.talk.speech import speech_file

FORMATS = ("wav", "mp3", "opus", "flac", "pcm")


def command(
    text: Annotated[str, typer.Argument(help="What to say.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File; its suffix chooses the format.")
    ] = Path("speech.wav"),
    voice: Annotated[str, typer.Option(help="Voice id; `antiphon models` lists them.")] = "alloy",
    speed: Annotated[float, typer.Option(min=0.25, max=4.0)] = 1.0,
    url: Url = DEFAULT_URL,
) -> None:
    """Speak a text into a file."""
    response_format = output.suffix.removeprefix(".") or "wav"
    if response_format not in FORMATS:
        raise InvalidArgument(
            f"unknown audio format {response_format!r}; use one of {', '.join(FORMATS)}",
            field="output",
            allowed=FORMATS,
        )

    async def work(client: httpx.AsyncClient) -> None:
        data = await speech_file(
            client, text, voice=voice, response_format=response_format, speed=speed
        )
        output.write_bytes(data)
        Console(stderr=True).print(f"{output}: {len(data)} bytes")

    with_client(url, work)
