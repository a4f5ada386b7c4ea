"""What the routes over the store share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from antiphon_core.errors import InvalidArgument

from antiphon_gateway.http import Scope
from antiphon_gateway.routes.common import gateway_of
from antiphon_gateway.store.records import is_object_id

if TYPE_CHECKING:
    from antiphon_gateway.store.storage import Storage


def storage_of(scope: Scope) -> Storage:
    """The gateway's storage.

    Raises:
        InvalidArgument: UNSUPPORTED_OPTION, none is configured.
    """
    storage = gateway_of(scope).storage
    if storage is None:
        raise InvalidArgument(
            "this deployment keeps no files and batches: it has no directory in [gateway.store]",
            reason="UNSUPPORTED_OPTION",
        )
    return storage


def query_of(scope: Scope) -> dict[str, str]:
    """The query's parameters, the last value of each."""
    parsed = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    return {name: values[-1] for name, values in parsed.items()}


def choice_of(query: dict[str, str], name: str, allowed: Sequence[str], default: str = "") -> str:
    """A parameter with few values.

    Raises:
        InvalidArgument: naming it and what is allowed.
    """
    value = query.get(name) or default
    if value != default and value not in allowed:
        raise InvalidArgument(
            f"{name} must be one of {', '.join(allowed)}", field=name, allowed=allowed
        )
    return value


def limit_of(query: dict[str, str], default: int, most: int) -> int:
    """The parameter ``limit``.

    Raises:
        InvalidArgument: it is no number from 1 to ``most``.
    """
    text = query.get("limit") or str(default)
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most):
        raise InvalidArgument(f"limit must be a number from 1 to {most}", field="limit")
    return int(text)


def cursor_of(query: dict[str, str], prefix: str) -> str:
    """The parameter ``after``; empty for the first page.

    Raises:
        InvalidArgument: it is no id of this kind.
    """
    after = query.get("after", "")
    if after and not (after.startswith(prefix) and is_object_id(after)):
        raise InvalidArgument(f"after must be an id that begins with {prefix}", field="after")
    return after
