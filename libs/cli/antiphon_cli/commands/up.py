"""`antiphon up`: the whole suite in one terminal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from antiphon_core.config import load_settings
from antiphon_core.logs import configure_logging
from rich.console import Console

from antiphon_cli.commands.options import ConfigFile, LlmModel, Port
from antiphon_cli.suite.runner import Suite
from antiphon_cli.suite.settings import EdgeSettings


def command(config: ConfigFile = None, port: Port = None, llm_model: LlmModel = "") -> None:
    """Start llm, vocoder, gateway, admin and Envoy, and serve until Ctrl-C."""
    console = Console(stderr=True)
    suite = make_suite(console, config, port, llm_model)

    async def announce(running: Suite) -> None:
        console.print(
            f"\nAntiphon serves on [bold]{running.url}[/bold] "
            f"(page, REST and realtime); logs in {running.settings.run_dir}/. Ctrl-C stops it."
        )
        await running.wait()

    run_suite(suite, announce, console)


def make_suite(console: Console, config: Path | None, port: int | None, llm_model: str) -> Suite:
    """A suite from the [edge] section, with the command line's port and model on top."""
    configure_logging("suite", level="error")
    flags = ["--port", str(port)] if port is not None else []
    settings = load_settings(EdgeSettings, section="edge", config_file=config, argv=flags)
    overrides = {"llm": ["--model", llm_model]} if llm_model else {}
    return Suite(settings, config_file=config, overrides=overrides, console=console)


def run_suite(suite: Suite, work: Callable[[Suite], Awaitable[None]], console: Console) -> None:
    """Starts the suite, runs ``work`` with it, and stops it when that ends or on a signal."""

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, task.cancel)
        try:
            async with suite:
                await work(suite)
                console.print("stopping")
        except asyncio.CancelledError:
            console.print("stopped")

    asyncio.run(run())
