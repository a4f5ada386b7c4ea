"""The OpenAPI document: complete, sound, of the wire models, and made without a model library."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import jsonschema
import msgspec
import pytest
from antiphon_gateway.openai import chat
from antiphon_gateway.openai.errors import ERROR_TABLE
from antiphon_gateway.openapi.endpoint import documented_routes, openapi_json
from antiphon_gateway.openapi.operation import Endpoint, FormBody, JsonBody
from schemathesis.specs.openapi.definitions import OPENAPI_31

DOCUMENT = json.loads(openapi_json())
OPERATIONS = {
    f"{method} {path}": operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}


def resolved(shape: dict[str, Any]) -> dict[str, Any]:
    """What a reference means; anything else as it is."""
    if "$ref" not in shape:
        return shape
    found: Any = DOCUMENT
    for step in shape["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    return found


def references(shape: Any) -> list[str]:
    if isinstance(shape, dict):
        mine = [shape["$ref"]] if isinstance(shape.get("$ref"), str) else []
        return mine + [ref for value in shape.values() for ref in references(value)]
    if isinstance(shape, list):
        return [ref for value in shape for ref in references(value)]
    return []


def test_the_document_is_sound() -> None:
    jsonschema.Draft202012Validator(OPENAPI_31).validate(DOCUMENT)
    for reference in references(DOCUMENT):
        assert resolved({"$ref": reference})
    names = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(set(names)) == len(names)


def test_every_route_of_the_protocol_is_described() -> None:
    for route in documented_routes():
        if route.path not in ("/openapi.json", "/voice"):  # the latter opens the page
            assert isinstance(route, Endpoint), f"{route.path} has no Operation"
            assert route.path_format in DOCUMENT["paths"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_is_described(name: str) -> None:
    responses = OPERATIONS[name]["responses"]
    assert any(resolved(responses["200"])["content"])
    for status, reference in responses.items():
        response = resolved(reference)
        assert response["headers"]["x-request-id"]
        if status != "200" and name != "get /health/ready":
            schema = response["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorBody"}
    known = {str(row.status) for row in ERROR_TABLE.values()} | {"200"}
    assert set(responses) <= known


def test_a_body_says_what_its_table_says() -> None:
    for route in documented_routes():
        for method, operation in getattr(route, "operations", {}).items():
            if not isinstance(operation.body, JsonBody | FormBody) or not operation.body.policies:
                continue
            shown = OPERATIONS[f"{method} {route.path_format}"]["requestBody"]["content"]
            (content,) = shown.values()
            properties = {
                name.partition("[")[0] for name in resolved(content["schema"])["properties"]
            }
            hidden = operation.body.policies.keys() - properties
            if isinstance(operation.body, JsonBody):
                assert not hidden
            assert properties <= operation.body.policies.keys()


def test_refused_and_inert_fields_are_told_apart() -> None:
    properties = DOCUMENT["components"]["schemas"]["ChatRequest"]["properties"]
    assert properties["store"]["enum"] == [None, False]
    assert properties["functions"]["description"] == "Not served; send tools."
    assert properties["user"] == {"description": "Accepted; has no effect on the output."}
    assert properties["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 16}


def test_streams_are_described_by_their_events() -> None:
    content = OPERATIONS["post /v1/chat/completions"]["responses"]["200"]["content"]
    events = content["text/event-stream"]["schema"]["anyOf"]
    assert [event["$ref"].rpartition("/")[2] for event in events] == ["Chunk", "ErrorBody"]
    speech = OPERATIONS["post /v1/audio/speech"]["responses"]["200"]["content"]
    assert {"audio/mpeg", "audio/wav", "text/event-stream"} <= set(speech)


def test_a_form_shows_what_it_serves() -> None:
    def shown(path: str) -> dict[str, Any]:
        return OPERATIONS[f"post {path}"]["requestBody"]["content"]["multipart/form-data"]["schema"]

    form = shown("/v1/audio/transcriptions")
    assert "timestamp_granularities" in form["properties"] and form["required"] == ["file"]
    assert "stream" not in shown("/v1/audio/translations")["properties"]
    assert "expires_after[seconds]" in shown("/v1/files")["properties"]


def test_fields_that_are_passed_on_unread_stay_optional() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = {"messages": [{"role": "user", "content": "x"}], "tools": tools}
    request = msgspec.json.decode(json.dumps(asked), type=chat.ChatRequest)
    assert request.tools and bytes(request.tools[0].function.parameters) == b"null"


def test_the_dump_needs_no_model_library() -> None:
    program = (
        "import sys; sys.argv = ['antiphon_gateway', '--openapi']\n"
        "from antiphon_gateway.__main__ import main; main()\n"
        "print(sorted({'torch', 'numpy', 'onnxruntime', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    document, _, imported = done.stdout.rstrip().rpartition("\n")
    assert imported == "[]", done.stderr
    assert json.loads(document) == DOCUMENT
