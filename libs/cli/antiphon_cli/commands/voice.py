"""`antiphon voice`: speech to speech, from a file or the microphone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from antiphon_core.errors import FailedPrecondition
from rich.console import Console

from antiphon_cli.commands.options import DEFAULT_URL, Url
from antiphon_cli.talk.audio import read_wav, write_wav
from antiphon_cli.talk.microphone import converse
from antiphon_cli.talk.realtime import Turn, open_session, speak_turn


def command(
    wav: Annotated[
        Path | None, typer.Argument(help="WAV to speak; without it, the microphone.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="WAV of the reply.")] = Path(
        "reply.wav"
    ),
    instructions: Annotated[str, typer.Option(help="System instructions.")] = "",
    url: Url = DEFAULT_URL,
) -> None:
    """Hold a spoken turn (from a WAV) or a spoken conversation (from the microphone)."""
    session = {"instructions": instructions} if instructions else None
    console = Console()
    try:
        if wav is None:
            asyncio.run(converse(url, session, console))
            return
        turn = asyncio.run(_one_turn(url, session, wav))
    except OSError as error:
        raise FailedPrecondition(
            f"no suite answers at {url} ({error}); start one with `antiphon up`"
        ) from None
    write_wav(output, turn.samples)
    console.print(f"[bold]you[/bold]   {turn.transcript.strip()}", highlight=False)
    console.print(f"[bold]model[/bold] {turn.reply.strip()}", highlight=False)
    if turn.speech_end_to_first_audio is not None:
        milliseconds = turn.speech_end_to_first_audio * 1000
        console.print(f"[dim]{output}; speech end to first audio {milliseconds:.0f} ms[/dim]")


async def _one_turn(url: str, session: dict[str, str] | None, wav: Path) -> Turn:
    samples = read_wav(wav)
    async with open_session(url, session) as socket:
        return await speak_turn(socket, samples)
