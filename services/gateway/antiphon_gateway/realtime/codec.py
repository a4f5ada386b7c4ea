"""Frames of the socket to client events, with errors that name the field."""

from __future__ import annotations

import re
from typing import Any, TypeVar, get_args

import msgspec

from antiphon_gateway.realtime import events
from antiphon_gateway.realtime.errors import ProtocolError

MAX_APPEND_BYTES = 15 * 1024 * 1024

CLIENT_EVENT_TYPES = tuple(
    str(event.__struct_config__.tag) for event in get_args(events.ClientEvent)
)

_decoder = msgspec.json.Decoder(events.ClientEvent)
_PATH = re.compile(r" - at `\$?\.?(.*)`$")
_Struct = TypeVar("_Struct")


class InvalidEvent(Exception):
    """A frame that is no client event; ``event_id`` is its own where one could be read."""

    def __init__(self, error: ProtocolError, event_id: str | None) -> None:
        super().__init__(error.message)
        self.error = error
        self.event_id = event_id


def decode(frame: str | bytes) -> events.ClientEvent:
    """Parses one text frame.

    Raises:
        InvalidEvent: not JSON, an unknown type, or a field outside its domain.
    """
    try:
        event = _decoder.decode(frame)
    except msgspec.MsgspecError as failure:
        raise _explain(frame, failure) from None
    if isinstance(event, events.AppendAudio) and len(event.audio) > MAX_APPEND_BYTES:
        error = ProtocolError(
            f"audio has {len(event.audio)} bytes; one append takes at most {MAX_APPEND_BYTES}",
            param="audio",
        )
        raise InvalidEvent(error, event.event_id)
    return event


def convert(value: object, kind: type[_Struct], path: str) -> _Struct:
    """A plain JSON value as a typed struct.

    Args:
        value: what a JSON decoder returned.
        kind: the struct type.
        path: where the value stands in the event, such as ``session``.

    Raises:
        ProtocolError: naming the field.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as failure:
        raise error_of(failure, path) from None


def error_of(failure: msgspec.ValidationError, path: str) -> ProtocolError:
    """The protocol error of a failed validation below ``path``."""
    text = str(failure)
    match = _PATH.search(text)
    below = match.group(1) if match else ""
    text = text[: match.start()] if match else text
    missing = re.search(r"missing required field `(.+)`", text)
    if missing:
        below = ".".join(part for part in (below, missing.group(1)) if part)
        param = ".".join(part for part in (path, below) if part)
        return ProtocolError(f"{param} is required", code="missing_required_parameter", param=param)
    unknown = re.search(r"contains unknown field `(.+)`", text)
    if unknown:
        below = ".".join(part for part in (below, unknown.group(1)) if part)
        param = ".".join(part for part in (path, below) if part)
        return ProtocolError(f"unknown field {param}", code="unknown_parameter", param=param)
    param = ".".join(part for part in (path, below) if part)
    return ProtocolError(f"{param}: {text}", param=param)


def _explain(frame: str | bytes, failure: msgspec.MsgspecError) -> InvalidEvent:
    try:
        plain: Any = msgspec.json.decode(frame)
    except msgspec.MsgspecError:
        return InvalidEvent(
            ProtocolError(f"the message is not JSON: {failure}", code="invalid_json"), None
        )
    if not isinstance(plain, dict):
        return InvalidEvent(
            ProtocolError("the message must be a JSON object", code="invalid_json"), None
        )
    event_id = plain.get("event_id")
    if not isinstance(event_id, str) or len(event_id) > events.MAX_EVENT_ID:
        event_id = None
    kind = plain.get("type")
    if kind not in CLIENT_EVENT_TYPES:
        shown = "is missing" if kind is None else f"{kind!r} is unknown"
        code = "missing_required_parameter" if kind is None else "invalid_value"
        message = f"type {shown}; allowed: {', '.join(CLIENT_EVENT_TYPES)}"
        return InvalidEvent(ProtocolError(message, code=code, param="type"), event_id)
    assert isinstance(failure, msgspec.ValidationError)
    return InvalidEvent(error_of(failure, ""), event_id)
