"""The `antiphon` command."""

from __future__ import annotations

import sys

import typer
from antiphon_core.errors import AntiphonError
from rich.console import Console

from antiphon_cli.commands import (
    chat,
    demo,
    doctor,
    edge,
    engine,
    keys,
    models,
    say,
    transcribe,
    up,
    voice,
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Starts the Antiphon suite on this machine and talks to it.",
)
for command in (up, demo, chat, say, transcribe, voice, models, doctor):
    app.command(name=command.__name__.rpartition(".")[2])(command.command)
for operation in (engine.sleep, engine.wake):
    app.command()(operation)
app.add_typer(engine.cache, name="cache")
app.add_typer(edge.app, name="edge")
app.add_typer(keys.app, name="keys")


def main() -> None:
    """Runs a command; a typed error is one line on stderr and exit status 1."""
    try:
        app()
    except AntiphonError as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {error.message}")
        sys.exit(1)


if __name__ == "__main__":
    main()
