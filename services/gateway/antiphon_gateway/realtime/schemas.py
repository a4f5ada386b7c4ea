"""``GET /v1/realtime/schemas``: the wire's events as JSON Schema."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import msgspec

from antiphon_gateway.realtime import events
from antiphon_gateway.realtime.config import SessionConfig
from antiphon_gateway.realtime.response_params import ResponseParams

_REF = "#/$defs/{name}"


def server_events() -> dict[str, type[events.ServerEvent]]:
    """Every event that a session can send, by type."""
    found: dict[str, type[events.ServerEvent]] = {}
    waiting = [events.ServerEvent]
    while waiting:
        for event in waiting.pop().__subclasses__():
            waiting.append(event)
            # A tag that was not set is the class's own name.
            tag = event.__struct_config__.tag
            if isinstance(tag, str) and tag != event.__name__:
                found[tag] = event
    return dict(sorted(found.items()))


@cache
def document() -> bytes:
    """The schemas: events by type, and what session.update and response.create take."""
    client = {str(e.__struct_config__.tag): e for e in get_args(events.ClientEvent)}
    server = server_events()
    objects = {"session": SessionConfig, "response": ResponseParams}
    kinds: list[type] = [*client.values(), *server.values(), *objects.values()]
    schemas, definitions = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_kind = dict(zip(kinds, schemas, strict=True))
    sections = {"client_events": client, "server_events": server, "objects": objects}
    parts: dict[str, Any] = {
        name: {key: by_kind[kind] for key, kind in section.items()}
        for name, section in sections.items()
    }
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return msgspec.json.encode({**head, **parts, "$defs": definitions})
