"""Servers under load. Each module drives one protocol through the same narrow contract."""

from __future__ import annotations

from typing import Any, Protocol

from bench.load.record import Record

__all__ = ["Target"]


class Target(Protocol):
    """A server that takes jobs. Methods run on the event loop."""

    token_source: str
    """How tokens are counted: what a reader of the result has to know to trust the rates."""

    async def open(self) -> dict[str, Any]:
        """Connects; returns what the result file says about the server.

        Raises:
            RequestFailed: nothing answers, or it serves no model.
        """
        ...

    async def run(self, record: Record) -> None:
        """Sends the record's job and adds each piece as it comes.

        Returns when the terminal came (``record.ended`` is set), when ``record.leaves`` became
        true (the server has been told), or when the stream ended without a terminal. A cancelled
        task also tells the server.

        Raises:
            RequestFailed: the server ended the request with an error.
        """
        ...

    async def close(self) -> None:
        """Ends all connections."""
        ...
