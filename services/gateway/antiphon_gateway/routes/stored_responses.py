"""/v1/responses/{id}: retrieve, delete, cancel, and list the input."""

from __future__ import annotations

from typing import Any

import msgspec
from antiphon_core.errors import Aborted, InvalidArgument

from antiphon_gateway.http import Receive, Scope, Send, send_response
from antiphon_gateway.identity.principal import current_principal
from antiphon_gateway.openai.chat_output import encode
from antiphon_gateway.openai.responses import (
    InputItemsQuery,
    ItemList,
    ResponseDeleted,
    RetrieveQuery,
)
from antiphon_gateway.routes.common import gateway_of
from antiphon_gateway.routes.response_run import ResponseRun
from antiphon_gateway.routes.stored import query_of, storage_of


class _Ided(msgspec.Struct):
    id: str


class _Output(msgspec.Struct):
    output: list[msgspec.Raw]


class StoredResponse:
    """GET shows a response, one that runs in this process included; DELETE forgets it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant, response_id, run = _asked(scope)
        if scope["method"] == "DELETE":
            if run is not None:
                raise Aborted(
                    f"{response_id} is being made; cancel it, or wait", field="response_id"
                )
            await storage_of(scope).responses.delete(tenant, response_id)
            await send_response(send, 200, encode(ResponseDeleted(response_id)))
            return
        _check_query(query_of(scope, RetrieveQuery))
        if run is not None:
            body = encode(run.response)
        else:
            body = (await storage_of(scope).responses.get(tenant, response_id)).response
        await send_response(send, 200, body)


class CancelResponse:
    """POST ends a response that this process streams; one that is over cannot be cancelled."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant, response_id, run = _asked(scope)
        if run is None:
            await storage_of(scope).responses.get(tenant, response_id)
            raise InvalidArgument(
                f"{response_id} cannot be cancelled: it is over, and was not made in the "
                "background",
                field="response_id",
            )
        run.cancel()
        await run.over.wait()
        await send_response(send, 200, encode(run.response))


class InputItems:
    """GET lists what a response was made from: the items before it and those of its request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = query_of(scope, InputItemsQuery)
        tenant, response_id, run = _asked(scope)
        if run is not None:
            items = msgspec.json.decode(encode(run.given), type=list[msgspec.Raw])
        else:
            items = await _input_of(scope, tenant, response_id)
        ids = [msgspec.json.decode(item, type=_Ided).id for item in items]
        if query.order == "desc":
            items, ids = items[::-1], ids[::-1]
        start = 0
        if query.after:
            if query.after not in ids:
                raise InvalidArgument(
                    f"after: {query.after!r} is no item of {response_id}", field="after"
                )
            start = ids.index(query.after) + 1
        end = start + query.limit
        page: list[Any] = items[start:end]
        shown = ids[start:end]
        listed = ItemList(
            data=page,
            first_id=shown[0] if shown else None,
            last_id=shown[-1] if shown else None,
            has_more=end < len(items),
        )
        await send_response(send, 200, encode(listed))


async def _input_of(scope: Scope, tenant: str, response_id: str) -> list[msgspec.Raw]:
    chain = await storage_of(scope).responses.chain(
        tenant, response_id, "response_id", must_be_whole=False
    )
    items: list[msgspec.Raw] = []
    for kept in chain:
        items += msgspec.json.decode(kept.input, type=list[msgspec.Raw])
        if kept.id != response_id:
            items += msgspec.json.decode(kept.response, type=_Output).output
    return items


def _asked(scope: Scope) -> tuple[str, str, ResponseRun | None]:
    """The tenant, the id of the response, and its run if this process makes it."""
    tenant, response_id = current_principal().tenant, scope["path_params"]["response"]
    return tenant, response_id, gateway_of(scope).responses.find(tenant, response_id)


def _check_query(query: RetrieveQuery) -> None:
    if query.stream or query.starting_after is not None:
        name = "stream" if query.stream else "starting_after"
        raise InvalidArgument(
            f"{name} is not served here: a response is streamed only where it is made",
            reason="UNSUPPORTED_OPTION",
            field=name,
        )
