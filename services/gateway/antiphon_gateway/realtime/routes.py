"""``/v1/realtime/client_secrets`` and ``/schemas``, and the short address of the voice page."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from antiphon_core.errors import InvalidArgument
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from antiphon_gateway.http import read_body
from antiphon_gateway.identity.principal import current_principal
from antiphon_gateway.openapi.operation import CALL, Endpoint, JsonBody, Operation
from antiphon_gateway.realtime import codec, config_merge, schemas
from antiphon_gateway.realtime.admission import resolve_session
from antiphon_gateway.realtime.client_secrets import (
    DEFAULT_SECONDS,
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    Claims,
    Sealer,
    nonce,
)
from antiphon_gateway.realtime.errors import ProtocolError

if TYPE_CHECKING:
    from antiphon_gateway.app import Gateway


class ExpiresAfter(Struct, forbid_unknown_fields=True):
    """Lifetime of the secret, from now."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Meta(ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)] = DEFAULT_SECONDS


class ClientSecretRequest(Struct, forbid_unknown_fields=True):
    """The request body."""

    expires_after: ExpiresAfter = msgspec.field(default_factory=ExpiresAfter)
    session: dict[str, Any] = msgspec.field(default_factory=dict)


class ClientSecretResponse(Struct):
    """The response body."""

    value: str
    expires_at: int
    session: dict[str, Any]


async def create_client_secret(request: Request) -> Response:
    """Seals a session configuration into a token for a browser."""
    gateway: Gateway = request.app  # pyright: ignore[reportAssignmentType]
    settings = gateway.settings.realtime
    body = await read_body(request.receive)
    asked = _parse(body)
    try:
        kind = config_merge.type_of(asked.session, "realtime")
        model = resolve_session(gateway.backends, settings, kind, _model_name(asked.session))
        preset = {key: value for key, value in asked.session.items() if key != "model"}
        defaults = config_merge.default_config(settings, model, kind)
        config = config_merge.merge(defaults, defaults, preset)
    except ProtocolError as error:
        raise InvalidArgument(error.message, field=error.param) from None
    expires_at = int(time.time()) + asked.expires_after.seconds
    claims = Claims(
        expires_at=expires_at,
        model=model,
        session=preset,
        principal=current_principal(),
        nonce=nonce(),
    )
    answer = ClientSecretResponse(
        value=Sealer(settings.secret_key).seal(claims),
        expires_at=expires_at,
        session=config_merge.echo(config, f"sess_{secrets.token_hex(8)}", expires_at),
    )
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _model_name(session: dict[str, Any]) -> str:
    name = session.get("model") or ""
    if not isinstance(name, str):
        raise InvalidArgument("session.model must be a string", field="session.model")
    return name


def _parse(body: bytes) -> ClientSecretRequest:
    try:
        return msgspec.json.decode(body or b"{}", type=ClientSecretRequest)
    except msgspec.ValidationError as failure:
        error = codec.error_of(failure, "")
        raise InvalidArgument(error.message, field=error.param) from None
    except msgspec.DecodeError as failure:
        raise InvalidArgument(
            f"the request body is not JSON: {failure}", reason="INVALID_JSON"
        ) from None


class RealtimeSchemas(Struct):
    """JSON Schemas of the events; as the document that they make is, not described further."""


async def get_schemas(_request: Request) -> Response:
    """JSON Schemas of all client and server events, from the structs that read and write them."""
    return Response(schemas.document(), media_type="application/json")


async def open_voice_page(_request: Request) -> Response:
    """The page, at its voice conversation."""
    return RedirectResponse("/#voice")


ROUTES: list[BaseRoute] = [
    Endpoint(
        "/v1/realtime/client_secrets",
        create_client_secret,
        post=Operation(
            "createRealtimeClientSecret",
            "Seals a session's configuration into a token for a browser.",
            JsonBody(ClientSecretRequest, required=False),
            answer=(ClientSecretResponse,),
            errors=CALL,
        ),
    ),
    Endpoint(
        "/v1/realtime/schemas",
        get_schemas,
        get=Operation(
            "getRealtimeSchemas",
            "Shows the JSON Schemas of the realtime events.",
            answer=(RealtimeSchemas,),
        ),
    ),
    Route("/voice", open_voice_page, methods=["GET"]),
]
