"""Reads endless streams and drops them: ``python -m bench.rest.background PORT MODEL STREAMS``."""

from __future__ import annotations

import asyncio
import sys

from bench.rest.processes import chat_body, read_stream

ENDLESS = 10_000_000


async def main(port: int, model: str, streams: int) -> None:
    """Runs until the process is ended."""
    await asyncio.gather(*(read_stream(port, chat_body(ENDLESS, model)) for _ in range(streams)))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
