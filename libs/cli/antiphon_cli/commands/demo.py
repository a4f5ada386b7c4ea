"""`antiphon demo`: starts the suite and shows that it works."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from antiphon_cli.commands.options import ConfigFile, LlmModel, Port
from antiphon_cli.commands.up import make_suite, run_suite
from antiphon_cli.suite.runner import Suite
from antiphon_cli.tour import Tour


def command(
    exit_after: Annotated[bool, typer.Option("--exit", help="Stop after the tour.")] = False,
    config: ConfigFile = None,
    port: Port = None,
    llm_model: LlmModel = "",
    artifacts: Annotated[Path, typer.Option(help="Where the tour's audio goes.")] = Path(
        "artifacts"
    ),
) -> None:
    """Start the suite on real models, take a tour of it, and keep serving."""
    console = Console(stderr=True)
    started = time.perf_counter()
    suite = make_suite(console, config, port, llm_model)
    failed: list[str] = []

    async def tour(running: Suite) -> None:
        console.print(f"\nready after {time.perf_counter() - started:.1f} s\n")
        failed.extend(await Tour(running.url, Console(), artifacts).run())
        if exit_after:
            return
        console.print(
            f"\nAntiphon serves on [bold]{running.url}[/bold]: open it in a browser to talk. "
            "Ctrl-C stops it."
        )
        await running.wait()

    run_suite(suite, tour, console)
    if failed:
        console.print(f"[red]failed:[/red] {', '.join(failed)}")
        raise typer.Exit(1)
