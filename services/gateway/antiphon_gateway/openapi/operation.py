"""What the route table says of an endpoint beside its path: all that the document is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.routing import Route

from antiphon_gateway.openai.fields import Policies

CALL = (404, 502, 504)
"""Statuses of what asks a backend: the model is unknown, the backend broke or was late."""
OBJECT = (404,)
"""Statuses of what names a stored object."""


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A JSON request body.

    Attributes:
        wire: the msgspec Struct that decodes it.
        policies: the endpoint's field table; None where the Struct forbids unknown fields.
        required: whether an empty body is refused.
    """

    wire: type[Any]
    policies: Policies | None = None
    required: bool = True


@dataclass(frozen=True, slots=True)
class FormBody:
    """A multipart body with one file.

    Attributes:
        wire: the msgspec Struct that decodes the other fields.
        policies: the endpoint's field table.
        file: name of the file's field.
    """

    wire: type[Any]
    policies: Policies
    file: str = "file"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    Attributes:
        name: the operationId.
        summary: one sentence.
        body: what the request carries, if anything.
        query: msgspec Struct that decodes the query, if it has parameters.
        answer: types that the JSON answer may have; none where it has no JSON answer.
        events: types of the events that the endpoint streams on request.
        contents: media types of its other answers.
        errors: statuses of failure beside those that every endpoint has.
        others: types of further JSON answers by status.
    """

    name: str
    summary: str
    body: JsonBody | FormBody | None = None
    query: type[Any] | None = None
    answer: tuple[type[Any], ...] = ()
    events: tuple[type[Any], ...] = ()
    contents: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    others: Mapping[int, type[Any]] = field(default_factory=dict)


class Endpoint(Route):
    """A documented route.

    Args:
        path: template of the path.
        app: a bare ASGI application, or a function of a request.
        operations: by method in lower case; others are refused.
    """

    def __init__(self, path: str, app: Any, **operations: Operation) -> None:
        methods = [method.upper() for method in operations]
        super().__init__(path, app, methods=methods)
        self.operations = operations
