"""The page: the files of ``web/``, read once at start."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.routing import BaseRoute, Route

from antiphon_gateway.http import Receive, Scope, Send, header, send_response

_TYPES = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
    "png": b"image/png",
    "ico": b"image/x-icon",
    "json": b"application/json",
}
_INDEX = "index.html"


class PageFile:
    """One file as a bare ASGI application."""

    def __init__(self, name: str, content: bytes) -> None:
        self._content = content
        self._type = _TYPES[name.rpartition(".")[2]]
        self._etag = b'"' + hashlib.sha256(content).hexdigest()[:32].encode() + b'"'

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"etag", self._etag),
            (b"cache-control", b"no-cache"),
            (b"x-content-type-options", b"nosniff"),
        ]
        unchanged = header(scope, b"if-none-match") == self._etag
        hidden = unchanged or scope["method"] == "HEAD"
        await send_response(
            send,
            304 if unchanged else 200,
            b"" if hidden else self._content,
            content_type=self._type,
            headers=headers,
        )


def page_routes() -> list[BaseRoute]:
    """One route per file of ``web/``, and ``/`` for each folder's index.html."""
    routes: list[BaseRoute] = []
    for path, entry in _walk(files("antiphon_gateway") / "web", "/"):
        page = PageFile(entry.name, entry.read_bytes())
        routes.append(Route(path + entry.name, page, methods=["GET"]))
        if entry.name == _INDEX:
            routes.append(Route(path, page, methods=["GET"]))
    return routes


def _walk(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{path}{entry.name}/")
        elif entry.name.rpartition(".")[2] in _TYPES:
            yield path, entry
