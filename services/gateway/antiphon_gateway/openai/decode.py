"""Typed decoding of JSON bodies: strict about types, tolerant of unknown fields, never a 5xx."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from antiphon_core import metrics
from antiphon_core.errors import InvalidArgument

from antiphon_gateway.openai.fields import FieldClass, Policies

Wire = TypeVar("Wire")

_IGNORED_SHOWN = 8
_HEADER_LENGTH = 512
_NULL = b"null"
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_NOT_BRACKET = bytes(byte for byte in range(256) if byte not in b"[]{}")
_LOCATION = re.compile(r"^(.*?)(?: - at (?:`key` in )?`\$(.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]+)`")
_PATH_STEP = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")

_ignored_fields = metrics.counter(
    "http_ignored_fields_total", "Unknown request fields that were ignored", ("endpoint",)
)


def decode_body(
    body: bytes,
    wire_type: type[Wire],
    policies: Policies,
    *,
    endpoint: str,
    max_depth: int,
    strict_fields: bool = False,
) -> tuple[Wire, list[tuple[bytes, bytes]]]:
    """Decodes and validates a body.

    Args:
        body: the JSON text.
        wire_type: a msgspec Struct.
        policies: the endpoint's field table.
        endpoint: label of the counter of ignored fields.
        max_depth: deepest nesting allowed.
        strict_fields: refuse unknown fields.

    Returns:
        The request, and the response headers that name ignored fields.

    Raises:
        InvalidArgument: INVALID_JSON, or the field to blame with what is allowed.
    """
    if not body:
        raise InvalidArgument("the request body is empty", reason="INVALID_JSON")
    _check_text(body)
    check_depth(body, max_depth)
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise InvalidArgument("the body must be a JSON object", reason="INVALID_JSON") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid_json(error) from None
    ignored = apply_policies(
        {name: bytes(raw) for name, raw in fields.items()},
        policies,
        endpoint=endpoint,
        strict_fields=strict_fields,
    )
    try:
        request = msgspec.json.decode(body, type=wire_type)
    except msgspec.ValidationError as error:
        raise validation_error(error, wire_type) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid_json(error) from None
    return request, ignored


def apply_policies(
    fields: dict[str, bytes], policies: Policies, *, endpoint: str, strict_fields: bool
) -> list[tuple[bytes, bytes]]:
    """Refuses what is refused; returns the header that names unknown fields, if any.

    Raises:
        InvalidArgument: UNSUPPORTED_OPTION naming the field.
    """
    unknown = []
    for name, raw in fields.items():
        policy = policies.get(name)
        if policy is None:
            unknown.append(name)
        elif policy.kind is FieldClass.REFUSED and raw not in (_NULL, *policy.harmless):
            allowed = [value.decode() for value in policy.harmless]
            advice = f"allowed: {', '.join(allowed)}" if allowed else policy.instead
            raise InvalidArgument(
                f"{name} is not served here; {advice or 'leave it out'}",
                reason="UNSUPPORTED_OPTION",
                field=name,
                allowed=allowed,
            )
    if not unknown:
        return []
    if strict_fields:
        raise InvalidArgument(
            f"unknown field {unknown[0]}", reason="UNSUPPORTED_OPTION", field=unknown[0]
        )
    _ignored_fields.labels(endpoint).inc(len(unknown))
    return [(b"x-antiphon-ignored", header_text(", ".join(unknown[:_IGNORED_SHOWN])))]


def header_text(text: str) -> bytes:
    """A text as the value of a response header: printable ASCII, bounded."""
    return re.sub(r"[^\x20-\x7e]", "?", text)[:_HEADER_LENGTH].encode()


def _check_text(body: bytes) -> None:
    """Refuses what is no UTF-8, which the decoder does not see in values that it passes on unread.

    Raises:
        InvalidArgument: INVALID_JSON.
    """
    try:
        if not body.isascii():
            body.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"the body is not valid UTF-8: {error.reason} (byte {error.start})",
            reason="INVALID_JSON",
        ) from None


def check_depth(body: bytes, max_depth: int) -> None:
    """Refuses deep nesting before any decoder recurses into it.

    Raises:
        InvalidArgument: INVALID_JSON.
    """
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return
    depth = 0
    for byte in _STRING.sub(b"", body).translate(None, _NOT_BRACKET):
        if byte in b"[{":
            depth += 1
            if depth > max_depth:
                raise InvalidArgument(
                    f"the body is nested deeper than {max_depth} levels",
                    reason="INVALID_JSON",
                    metadata={"limit": str(max_depth)},
                )
        else:
            depth -= 1


def validation_error(
    error: msgspec.ValidationError, wire_type: Any, whole: str = ""
) -> InvalidArgument:
    """The typed error of a field that has the wrong type or is out of range.

    Args:
        error: what msgspec said.
        wire_type: what was to be decoded.
        whole: path in the request of the decoded value; empty for the request itself.
    """
    match = _LOCATION.match(str(error))
    assert match is not None
    problem, inner = match.group(1), (match.group(2) or "").lstrip(".")
    path = ".".join(filter(None, (whole, inner)))
    missing, unknown = _MISSING.match(problem), _UNKNOWN.match(problem)
    if missing:
        field = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return InvalidArgument(f"{field} is required", reason="MISSING_FIELD", field=field)
    if unknown:
        field = f"{path}.{unknown.group(1)}" if path else unknown.group(1)
        return InvalidArgument(f"unknown field {field}", reason="UNSUPPORTED_OPTION", field=field)
    allowed = _allowed_values(wire_type, inner) if problem.startswith("Invalid") else []
    text = f"{path}: {problem[0].lower()}{problem[1:]}" if path else problem
    if allowed:
        text += f"; allowed: {', '.join(allowed)}"
    return InvalidArgument(text, field=path, allowed=allowed)


def _invalid_json(error: Exception) -> InvalidArgument:
    detail = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return InvalidArgument(f"the body is not valid JSON: {detail}", reason="INVALID_JSON")


def _allowed_values(wire_type: Any, path: str) -> list[str]:
    """The literal values or type tags that the field at a path takes; empty where unbounded."""
    whole = msgspec.inspect.type_info(wire_type)
    # A form's field may have brackets in its name.
    kinds = _step_into(whole, path) or [whole]
    if kinds == [whole]:
        for step in _PATH_STEP.finditer("." + path):
            name = step.group(1)
            kinds = [inner for kind in kinds for inner in _step_into(kind, name)]
    values = []
    for kind in _flatten(kinds):
        if isinstance(kind, msgspec.inspect.LiteralType):
            values += [str(value) for value in kind.values]
        elif isinstance(kind, str):
            values.append(kind)
    return list(dict.fromkeys(values))


def _step_into(kind: Any, name: str | None) -> list[Any]:
    found: list[Any] = []
    for option in _flatten([kind]):
        if isinstance(option, msgspec.inspect.StructType) and name is not None:
            if name == option.tag_field:
                found.append(str(option.tag))
            found += [field.type for field in option.fields if field.encode_name == name]
        elif isinstance(option, msgspec.inspect.ListType) and name is None:
            found.append(option.item_type)
    return found


def _flatten(kinds: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for kind in kinds:
        if isinstance(kind, msgspec.inspect.UnionType):
            flat += _flatten(kind.types)
        elif isinstance(kind, msgspec.inspect.Metadata):
            flat += _flatten([kind.type])
        else:
            flat.append(kind)
    return flat
