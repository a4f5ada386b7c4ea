"""Scripted llm, voice and recogniser in a process of their own: ``python -m
bench.realtime.backends``. Prints the target it serves on."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop
from antiphon_core.logs import configure_logging

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "rpc" / "realtime"))

from realtime_fakes import ScriptedBackends  # pyright: ignore[reportMissingImports]


async def main() -> None:
    """Serves until it is ended."""
    configure_logging("fakes", level="error")
    backends = ScriptedBackends()
    print(await backends.start(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
