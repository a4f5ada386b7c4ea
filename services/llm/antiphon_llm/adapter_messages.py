"""The messages about adapters that the front and the engine process exchange; see ``messages``."""

from __future__ import annotations

import msgspec


class LoadAdapter(msgspec.Struct, tag="load_adapter"):
    """Reads an adapter and gives it a name. Answered by Done, with ``adapter`` set on success."""

    request_id: str
    name: str
    path: str
    """Of its directory, beneath the configured root."""
    tenant: str = ""
    """Who may use it."""
    shared: bool = False
    """Every tenant may; ``tenant`` is not read then."""


class UnloadAdapter(msgspec.Struct, tag="unload_adapter"):
    """Forgets an adapter that no request uses. Answered by Done."""

    request_id: str
    name: str
    tenant: str = ""
    shared: bool = False


class AdapterFacts(msgspec.Struct, array_like=True):
    """A loaded adapter."""

    digest: str
    """Of its files."""
    rank: int
    nbytes: int
    """Of its matrices as they are held."""
