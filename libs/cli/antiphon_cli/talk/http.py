"""HTTP access to a suite, with its errors as typed errors."""

from __future__ import annotations

import json

import httpx
from antiphon_core.errors import FailedPrecondition, InvalidArgument, Unavailable

TIMEOUT = httpx.Timeout(120.0, connect=5.0)


def open_client(url: str) -> httpx.AsyncClient:
    """A client whose paths are relative to the suite's base URL."""
    return httpx.AsyncClient(base_url=url, timeout=TIMEOUT)


async def raise_for_error(response: httpx.Response) -> None:
    """Turns an OpenAI error object into a typed error.

    Raises:
        InvalidArgument: for status 4xx, with the server's message.
        Unavailable: for status 5xx.
    """
    if response.status_code < 400:
        return
    await response.aread()
    try:
        error = response.json()["error"]
        message, field = str(error["message"]), str(error.get("param") or "")
    except (json.JSONDecodeError, KeyError, TypeError):
        message, field = response.text[:300], ""
    text = f"{message} (HTTP {response.status_code})"
    if response.status_code < 500:
        raise InvalidArgument(text, field=field)
    raise Unavailable(text)


def unreachable(url: str, error: httpx.HTTPError) -> FailedPrecondition:
    """The error to show when nothing answers at the suite's address."""
    return FailedPrecondition(
        f"no suite answers at {url} ({type(error).__name__}); start one with `antiphon up`, "
        "or name its address with --url"
    )
