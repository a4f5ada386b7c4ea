"""Builds the OpenAPI 3.1 document.

The schemas are those that msgspec gives for the very types that decode requests and encode answers;
the field tables add what is accepted without effect and what is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.routing import BaseRoute

from antiphon_gateway.middleware.authentication import GUARDED
from antiphon_gateway.openai.errors import ErrorBody
from antiphon_gateway.openai.fields import FieldClass, Policies
from antiphon_gateway.openapi.operation import Endpoint, FormBody, JsonBody, Operation

_REFERENCE = "#/components/schemas/{name}"
_EVERY_ERROR = (413, 431, 500)
_GUARDED_ERRORS = (400, 401, 403, 429, 503)
_BODY_ERRORS = (400, 408)
_JSON_POST_ERRORS = (409,)
"""Of ``Idempotency-Key``."""
_FORM_ERRORS = (415,)
_WAITING = (429, 503)
_DESCRIPTION = (
    "OpenAI's REST protocol, with extensions. A text/event-stream has one JSON value a data line; "
    "its schema here is that of one event. Chat and completion streams end with the line [DONE], "
    "the others with their terminal event. A stream that fails after its status was sent ends with "
    "an event that holds the error object. Unknown request fields are named in the response header "
    "x-antiphon-ignored. GET /v1/realtime upgrades to a WebSocket and is not described here."
)
_ROOT_PARAMETERS = {
    "RequestId": ("X-Request-ID", "Kept if it has this form, else replaced.", r"^[\w.-]{1,128}$"),
    "Priority": ("X-Antiphon-Priority", "Only lowers.", "^(interactive|batch)?$"),
}


def build_document(routes: Sequence[BaseRoute], version: str) -> dict[str, Any]:
    """The document of every documented route.

    Args:
        routes: the application's; those without operations are left out.
        version: of this release.
    """
    endpoints = [route for route in routes if isinstance(route, Endpoint)]
    kinds = _types_of([item for endpoint in endpoints for item in endpoint.operations.values()])
    found, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    references = dict(zip(kinds, found, strict=True))
    schemas = _Schemas(references, components)
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        path = paths.setdefault(endpoint.path_format, {})
        for method, operation in endpoint.operations.items():
            path[method] = _operation(endpoint, operation, schemas)
    return {
        "openapi": "3.1.1",
        "info": {"title": "Antiphon", "version": version, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "responses": _error_responses(references[ErrorBody]),
            "parameters": {
                name: _parameter(header, "header", {"type": "string", "pattern": form}, text)
                for name, (header, text, form) in _ROOT_PARAMETERS.items()
            },
            "headers": {
                "RequestId": {
                    "description": "Id of the request in logs and traces.",
                    "required": True,
                    "schema": {"type": "string"},
                },
                "RetryAfter": {
                    "description": "Seconds to wait; retry-after-ms has them in milliseconds.",
                    "schema": {"type": "integer", "minimum": 0},
                },
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """The schema of each type; bodies get the fields that only their table knows."""

    def __init__(self, references: dict[type[Any], Any], components: dict[str, Any]) -> None:
        self._references = references
        self._components = components

    def of(self, kind: type[Any]) -> dict[str, Any]:
        return self._references[kind]

    def any_of(self, kinds: Sequence[type[Any]]) -> dict[str, Any]:
        return self.of(kinds[0]) if len(kinds) == 1 else {"anyOf": [self.of(k) for k in kinds]}

    def body(self, body: JsonBody | FormBody) -> dict[str, Any]:
        if isinstance(body, FormBody):
            form = _flat(body.wire)
            # Translations share the form of transcriptions and serve a part of it.
            for name in [n for n in form["properties"] if n.partition("[")[0] not in body.policies]:
                del form["properties"][name]
            form["properties"][body.file] = {"type": "string", "format": "binary"}
            form.setdefault("required", []).append(body.file)
            return form
        reference = self.of(body.wire)
        if body.policies is not None:
            component = self._components[reference["$ref"].rpartition("/")[2]]
            component["properties"] |= _further_properties(body.policies)
        return reference


def _flat(kind: type[Any]) -> dict[str, Any]:
    """The schema of a Struct without Structs inside."""
    _, components = msgspec.json.schema_components([kind])
    (schema,) = components.values()
    return schema


def _further_properties(policies: Policies) -> dict[str, Any]:
    further: dict[str, Any] = {}
    for name, policy in policies.items():
        if policy.kind is FieldClass.INERT:
            further[name] = {"description": "Accepted; has no effect on the output."}
        elif policy.kind is FieldClass.REFUSED:
            allowed = [None, *(msgspec.json.decode(raw) for raw in policy.harmless)]
            text = f"Not served; {policy.instead}." if policy.instead else "Not served."
            further[name] = {"enum": allowed, "description": text}
    return further


def _types_of(operations: Sequence[Operation]) -> list[type[Any]]:
    kinds: list[type[Any]] = [ErrorBody]
    for operation in operations:
        body = operation.body
        kinds += [body.wire] if isinstance(body, JsonBody) else []
        kinds += [*operation.answer, *operation.events, *operation.others.values()]
    return list(dict.fromkeys(kinds))


def _operation(endpoint: Endpoint, operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    guarded = endpoint.path.startswith(GUARDED)
    shown: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": list(_parameters(endpoint, operation, schemas)),
        "responses": _responses(operation, schemas, guarded),
    }
    if guarded:
        # A deployment without a verifier asks for no key.
        shown["security"] = [{"bearer": []}, {}]
    if operation.body is not None:
        kind = "application/json" if isinstance(operation.body, JsonBody) else "multipart/form-data"
        shown["requestBody"] = {
            "required": not isinstance(operation.body, JsonBody) or operation.body.required,
            "content": {kind: {"schema": schemas.body(operation.body)}},
        }
    return shown


def _parameters(
    endpoint: Endpoint, operation: Operation, schemas: _Schemas
) -> Iterator[dict[str, Any]]:
    for name in endpoint.param_convertors:
        yield _parameter(name, "path", {"type": "string", "minLength": 1})
    if operation.query is not None:
        for name, described in _flat(operation.query)["properties"].items():
            yield _parameter(name, "query", described)
    for name in _ROOT_PARAMETERS:
        yield {"$ref": f"#/components/parameters/{name}"}


def _parameter(name: str, place: str, schema: dict[str, Any], text: str = "") -> dict[str, Any]:
    shown: dict[str, Any] = {"name": name, "in": place, "schema": schema}
    if place == "path":
        shown["required"] = True
    if text:
        shown["description"] = text
    return shown


def _responses(operation: Operation, schemas: _Schemas, guarded: bool) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.answer:
        content["application/json"] = {"schema": schemas.any_of(operation.answer)}
    if operation.events:
        content["text/event-stream"] = {"schema": schemas.any_of((*operation.events, ErrorBody))}
    for kind in operation.contents:
        content[kind] = {"schema": {"type": "string"}}
    responses = {"200": _response(HTTPStatus.OK.phrase, content)}
    errors = {*_EVERY_ERROR, *operation.errors}
    if guarded:
        errors.update(_GUARDED_ERRORS)
    if operation.body is not None:
        is_json = isinstance(operation.body, JsonBody)
        errors.update(_BODY_ERRORS, _JSON_POST_ERRORS if is_json else _FORM_ERRORS)
    for status in sorted(errors - operation.others.keys()):
        responses[str(status)] = {"$ref": f"#/components/responses/{_name_of(status)}"}
    for status, kind in operation.others.items():
        body = {"application/json": {"schema": schemas.of(kind)}}
        responses[str(status)] = _response(HTTPStatus(status).phrase, body)
    return responses


def _error_responses(error: dict[str, Any]) -> dict[str, Any]:
    statuses = {
        *(*_EVERY_ERROR, *_GUARDED_ERRORS, *_BODY_ERRORS, *_JSON_POST_ERRORS, *_FORM_ERRORS),
        *(404, 502, 504),
    }
    shown = {}
    for status in sorted(statuses):
        response = _response(HTTPStatus(status).phrase, {"application/json": {"schema": error}})
        if status in _WAITING:
            response["headers"]["retry-after"] = {"$ref": "#/components/headers/RetryAfter"}
        shown[_name_of(status)] = response
    return shown


def _response(description: str, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "description": description,
        "headers": {"x-request-id": {"$ref": "#/components/headers/RequestId"}},
        "content": content,
    }


def _name_of(status: int) -> str:
    return "".join(word.capitalize() for word in HTTPStatus(status).phrase.split())
