"""``Idempotency-Key``: a request that is sent again gets the answer of the first one."""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import TYPE_CHECKING

import msgspec
from antiphon_core import metrics
from antiphon_core.errors import Aborted, FailedPrecondition, InvalidArgument, Unavailable
from antiphon_core.logs import get_logger
from msgspec import Struct

from antiphon_gateway.http import Message, Receive, Scope, Send, header, read_body
from antiphon_gateway.identity.principal import Principal
from antiphon_gateway.middleware.request import App

if TYPE_CHECKING:
    from antiphon_gateway.store.idempotency import IdempotencyTable, KeptResponse

KEPT_SECONDS = 24 * 3600.0
MAX_KEPT_BYTES = 8 * 1024 * 1024
"""Larger answers are sent and not kept."""
_NAME_FORM = re.compile(rb"[\x21-\x7e]{1,255}")
_FIELD = "idempotency-key"

log = get_logger(__name__)

_replays = metrics.counter("idempotent_replays_total", "Requests answered from a kept response")


class _Streamed(Struct):
    stream: bool | None = None


class IdempotencyMiddleware:
    """Keeps successful answers of JSON POSTs that carry the header and do not stream.

    A refusal is not kept: it had no effect, and the next try may fare better.

    Args:
        app: what it wraps.
        table: the store's; None where there is no store, and then the header is refused.
        request_seconds: the longest that a request runs.
    """

    def __init__(self, app: App, table: IdempotencyTable | None, request_seconds: float) -> None:
        self._app = app
        self._table = table
        self._request_seconds = request_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = header(scope, b"idempotency-key")
        principal = scope.get("principal")
        if not name or principal is None or scope["method"] != "POST" or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        if not _NAME_FORM.fullmatch(name):
            raise InvalidArgument(
                "Idempotency-Key must have 1 to 255 visible ASCII characters", field=_FIELD
            )
        if self._table is None:
            raise InvalidArgument(
                "Idempotency-Key is not served here: there is no store to keep answers in",
                reason="UNSUPPORTED_OPTION",
                field=_FIELD,
            )
        body = await read_body(receive)
        replayed = _replayed(body, receive)
        if _streams(body):
            await self._app(scope, replayed, send)
            return
        place = _place(principal, scope["path"], name)
        digest = hashlib.sha256(body).hexdigest()
        kept = await self._table.begin(place, digest, self._request_seconds)
        if kept is None:
            await self._run(place, digest, scope, replayed, send)
        else:
            await _replay(kept, digest, send)

    async def _run(
        self, place: str, digest: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        recorder = _Recorder(send)
        try:
            await self._app(scope, receive, recorder.send)
        except BaseException:
            # Shielded: the note must go even when the task ends because the client went away.
            await asyncio.shield(self._end(place, digest, None))
            raise
        await self._end(place, digest, recorder)

    async def _end(self, place: str, digest: str, recorder: _Recorder | None) -> None:
        assert self._table is not None
        from antiphon_gateway.store.idempotency import KeptResponse

        try:
            if recorder is None or not recorder.is_kept:
                await self._table.forget(place)
                return
            response = KeptResponse(
                digest, recorder.status, recorder.headers, b"".join(recorder.pieces)
            )
            await self._table.keep(place, response, KEPT_SECONDS)
        except Unavailable as error:
            # The client has its answer. A repetition is refused until the note is void.
            log.error("idempotent_answer_not_kept", reason=error.reason)


class _Recorder:
    """Passes a response on and remembers it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._size = 0
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []

    @property
    def is_kept(self) -> bool:
        """Whether the response is worth keeping, and small enough."""
        return 200 <= self.status < 300 and self._size <= MAX_KEPT_BYTES

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = list(message.get("headers", ()))
        else:
            piece = message.get("body", b"")
            self._size += len(piece)
            if self._size <= MAX_KEPT_BYTES:
                self.pieces.append(piece)
        await self._send(message)


async def _replay(kept: KeptResponse, digest: str, send: Send) -> None:
    if kept.body_hash != digest:
        raise FailedPrecondition(
            "this Idempotency-Key was used with another body; take a new one",
            reason="IDEMPOTENCY_MISMATCH",
            field=_FIELD,
        )
    if kept.status is None:
        raise Aborted("the first request with this Idempotency-Key is still running", field=_FIELD)
    _replays.inc()
    headers = [*kept.headers, (b"idempotent-replayed", b"true")]
    await send({"type": "http.response.start", "status": kept.status, "headers": headers})
    await send({"type": "http.response.body", "body": kept.body})


def _is_json(scope: Scope) -> bool:
    content_type = header(scope, b"content-type").partition(b";")[0].strip().lower()
    return content_type in (b"", b"application/json")


def _streams(body: bytes) -> bool:
    try:
        return bool(msgspec.json.decode(body, type=_Streamed).stream)
    except msgspec.DecodeError:
        return False  # the route says what is wrong with it


def _place(principal: Principal, path: str, name: bytes) -> str:
    text = "\0".join((principal.tenant, principal.key_id, path, name.decode("ascii")))
    return hashlib.sha256(text.encode()).hexdigest()


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body that was read already, then whatever comes after it."""
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return given.pop() if given else await receive()

    return replayed
