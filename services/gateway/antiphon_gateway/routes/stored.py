"""What the routes over the store share."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qs

import msgspec
from antiphon_core.errors import InvalidArgument

from antiphon_gateway.http import Scope
from antiphon_gateway.openai.decode import validation_error
from antiphon_gateway.routes.common import gateway_of

if TYPE_CHECKING:
    from antiphon_gateway.store.storage import Storage

Query = TypeVar("Query")


def storage_of(scope: Scope) -> Storage:
    """The gateway's storage.

    Raises:
        InvalidArgument: UNSUPPORTED_OPTION, none is configured.
    """
    storage = gateway_of(scope).storage
    if storage is None:
        raise InvalidArgument(
            "this deployment keeps nothing: it has no directory in [gateway.store]",
            reason="UNSUPPORTED_OPTION",
        )
    return storage


def query_of(scope: Scope, kind: type[Query]) -> Query:
    """The query's parameters as a msgspec Struct, the last value of each; empty is absent.

    Raises:
        InvalidArgument: naming the parameter and what is allowed.
    """
    given = parse_qs(scope["query_string"].decode("latin-1"))
    try:
        return msgspec.convert(
            {name: values[-1] for name, values in given.items()}, kind, strict=False
        )
    except msgspec.ValidationError as error:
        raise validation_error(error, kind) from None
