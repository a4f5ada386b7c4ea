"""``WS /v1/realtime``: admission before the upgrade, then one connection."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from antiphon_core import metrics
from antiphon_core.errors import AntiphonError, ResourceExhausted
from antiphon_core.lifecycle import LifecycleSnapshot, State
from antiphon_core.logs import get_logger
from starlette.responses import Response
from starlette.websockets import WebSocket

from antiphon_gateway.middleware.authentication import act_as
from antiphon_gateway.openai.errors import error_body, error_headers, row_of
from antiphon_gateway.quota.meter import use_meter
from antiphon_gateway.realtime import events, session
from antiphon_gateway.realtime.admission import Admission, admit, served
from antiphon_gateway.realtime.connection import Connection
from antiphon_gateway.realtime.errors import REQUEST_ERROR, ProtocolError

if TYPE_CHECKING:
    from antiphon_gateway.app import Gateway

BETA_HEADER = "openai-beta"
BETA_VALUE = "realtime=v1"
POLICY_CLOSE_CODE = 1008

log = get_logger(__name__)

_open = metrics.gauge("realtime_sessions", "Open realtime sessions")
_refused = metrics.counter("realtime_refusals_total", "Refused upgrades", ("reason", "status"))


async def realtime_websocket(websocket: WebSocket) -> None:
    """Serves one socket from its upgrade request to its end."""
    gateway: Gateway = websocket.app  # pyright: ignore[reportAssignmentType]
    try:
        with _counted(gateway):
            admission = await admit(
                gateway,
                websocket.scope["headers"],
                websocket.scope["subprotocols"],
                websocket.query_params.get("model", ""),
                websocket.query_params.get("intent", ""),
            )
            meter = await gateway.quotas.admit(admission.principal)
            with act_as(admission.principal), use_meter(meter):
                await _accept(websocket, gateway, admission)
    except AntiphonError as error:
        await _deny(websocket, error)


async def _accept(websocket: WebSocket, gateway: Gateway, admission: Admission) -> None:
    await websocket.accept(subprotocol=admission.subprotocol)
    if BETA_VALUE in websocket.headers.get(BETA_HEADER, ""):
        await _refuse_beta(websocket)
    else:
        await _serve(websocket, gateway, admission)


async def _serve(websocket: WebSocket, gateway: Gateway, admission: Admission) -> None:
    try:
        state = session.new_state(
            token=secrets.token_hex(8),
            model=admission.model,
            settings=gateway.settings.realtime,
            served=served(gateway.backends, admission.names),
            wall_seconds=int(time.time()),
            kind=admission.kind,
            preset=admission.preset,
            context_limit=admission.context_limit,
        )
    except ProtocolError as error:
        await _send_error(websocket, error)
        await websocket.close(POLICY_CLOSE_CODE, "the client secret's session is not served")
        return
    connection = Connection(websocket, state, gateway.backends, gateway.phrases)
    loop = asyncio.get_running_loop()

    def follow(snapshot: LifecycleSnapshot) -> None:
        if snapshot.state is State.DRAINING:
            loop.call_soon_threadsafe(connection.drain)

    unsubscribe = gateway.lifecycle.subscribe(follow)
    log.info("realtime_opened", session_id=state.session_id, model=admission.model)
    try:
        await connection.run()
    finally:
        unsubscribe()
        log.info("realtime_closed", session_id=state.session_id, events=state.event_count)


_sessions: dict[int, int] = {}
"""Open sessions by application, for admission."""


@contextmanager
def _counted(gateway: Gateway) -> Iterator[None]:
    key = id(gateway)
    limit = gateway.settings.realtime.max_connections
    if _sessions.get(key, 0) >= limit:
        raise ResourceExhausted(
            f"{limit} realtime sessions are open, the most that this replica serves",
            reason="SLOTS_FULL",
            metadata={"limit": str(limit)},
            retry_after=5.0,
        )
    _sessions[key] = _sessions.get(key, 0) + 1
    _open.inc()
    try:
        yield
    finally:
        _open.dec()
        _sessions[key] -= 1
        if not _sessions[key]:
            del _sessions[key]


async def _deny(websocket: WebSocket, error: AntiphonError) -> None:
    row = row_of(error)
    _refused.labels(error.reason, row.status).inc()
    log.warning("realtime_refused", reason=error.reason, message=error.message[:500])
    headers = {key.decode(): value.decode() for key, value in error_headers(error)}
    await websocket.send_denial_response(
        Response(error_body(error), row.status, headers, media_type="application/json")
    )


async def _refuse_beta(websocket: WebSocket) -> None:
    error = ProtocolError(
        "the beta event shapes are not served; leave out the OpenAI-Beta header",
        code="beta_api_shape_disabled",
        kind=REQUEST_ERROR,
    )
    await _send_error(websocket, error)
    await websocket.close(POLICY_CLOSE_CODE, error.code)


async def _send_error(websocket: WebSocket, error: ProtocolError) -> None:
    body = events.ErrorBody(error.kind, error.code, error.message, error.param or None, None)
    event = events.Error(event_id=f"event_{secrets.token_hex(8)}", error=body)
    await websocket.send_text(events.encode(event).decode())
