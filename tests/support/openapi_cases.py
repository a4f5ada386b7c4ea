"""Requests that Schemathesis makes of the OpenAPI document, and what every answer must be."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
TIMEOUT_S = 180.0
"""A text that nobody bounds takes the small model to the end of its context."""
_SEED = 20
_WITHOUT_BODY = 10
"""Cases of an operation that has only a path or a query to vary."""
_HEADERS = {"X-Request-ID": "case", "X-Antiphon-Priority": "interactive"}
"""Not varied: what they refuse would hide what the bodies do."""
_NAMES = ("model", "lora", "voice")
"""Fields whose every random value is an unknown name."""


@dataclass
class Cases:
    """Schemathesis against one server.

    Args:
        url: base of the server.
        changes: fields that every second allowed JSON body gets where it has them.
        bounds: for a path, fields that every allowed JSON body gets where it has none.
    """

    url: str
    changes: dict[str, Any]
    bounds: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        schema = schemathesis.openapi.from_url(f"{self.url}/openapi.json")
        self._operations = [result.ok() for result in schema.get_all_operations()]
        self._events = _Events(schema.raw_schema)
        self.statuses: Counter[int] = Counter()
        """How often each came."""

    def ask(self, mode: GenerationMode, count: int) -> None:
        """Sends requests of one kind, and checks each answer against the document.

        Args:
            mode: requests that the document allows, or ones that it forbids.
            count: how many.

        Raises:
            FailureGroup: an answer is a server error, undocumented, or not what is documented;
                the text has the request as a curl command.
        """
        with_body = [item for item in self._operations if item.body]
        others = [item for item in self._operations if not item.body]
        if mode is GenerationMode.NEGATIVE:
            others = [item for item in others if item.query]
        few = min(_WITHOUT_BODY, -(-count // (2 * len(others))))
        for operation in others:
            self._ask(operation, mode, few)
        missing = count - self.statuses.total()
        for operation in with_body:
            self._ask(operation, mode, -(-missing // len(with_body)))

    @property
    def streamed_events(self) -> int:
        """How many events of streams were checked."""
        return self._events.count

    def _ask(self, operation: Any, mode: GenerationMode, count: int) -> None:
        @seed(_SEED)
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(mode, headers=_HEADERS))
        def asked(case: Case) -> None:
            if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
                body = self._sensible(case.body)
                bounds = self.bounds.get(case.path, {}).items()
                case.body = body | {name: bound for name, bound in bounds if body.get(name) is None}
            response = case.call(base_url=self.url, timeout=TIMEOUT_S)
            self.statuses[response.status_code] += 1
            is_stream = "text/event-stream" in str(response.headers.get("content-type"))
            case.validate_response(response, checks=CHECKS[:-1] if is_stream else CHECKS)
            if is_stream:
                self._events.check(operation, response.content.decode())

        try:
            asked()
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE  # nothing of the operation can be wrong

    def _sensible(self, body: dict[str, Any]) -> dict[str, Any]:
        """A body that reaches further: it names what is served, half of the time it means it."""
        body = {name: _whole(value) for name, value in body.items() if name not in _NAMES}
        if self.statuses.total() % 2:
            body |= {name: value for name, value in self.changes.items() if name in body}
        return body


class _Events:
    """Checks event streams; their schema is that of one event's data, as in OpenAI's document."""

    def __init__(self, document: dict[str, Any]) -> None:
        resource = Resource.from_contents(document, default_specification=DRAFT202012)
        self._registry = Registry().with_resource("urn:document", resource)
        self.count = 0

    def check(self, operation: Any, text: str) -> None:
        """Every data line is an event of the operation, or the end of its stream."""
        path = operation.path.replace("~", "~0").replace("/", "~1")
        place = f"/paths/{path}/{operation.method}/responses/200/content/text~1event-stream/schema"
        schema = {"$ref": f"urn:document#{place}"}
        validator = Draft202012Validator(schema, registry=self._registry)
        for block in text.removesuffix("\n\n").split("\n\n"):
            data = block.rpartition("data: ")[2]
            if block != ": ping" and data != "[DONE]":
                validator.validate(json.loads(data))
                self.count += 1


def _whole(value: Any) -> Any:
    """The value with 1 for 1.0: the same to JSON Schema, not to a strict decoder."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _whole(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return value
