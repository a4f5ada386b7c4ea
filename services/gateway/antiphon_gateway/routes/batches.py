"""/v1/batches: create, list, retrieve, cancel."""

from __future__ import annotations

import time

import msgspec
from antiphon_core.errors import InvalidArgument

from antiphon_gateway.http import Receive, Scope, Send, send_response
from antiphon_gateway.identity.principal import current_principal
from antiphon_gateway.openai import batches as wire
from antiphon_gateway.openai.fields import BATCH
from antiphon_gateway.routes.common import gateway_of, read_request
from antiphon_gateway.routes.stored import query_of, storage_of
from antiphon_gateway.store.records import (
    Batch,
    BatchRecord,
    BatchStatus,
    StoredFile,
    new_object_id,
)

WINDOW_SECONDS = 24 * 3600


class Batches:
    """POST takes a batch whose input is checked later; GET lists, newest first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self._create(scope, receive, send)
        else:
            await self._list(scope, send)

    async def _create(self, scope: Scope, receive: Receive, send: Send) -> None:
        storage = storage_of(scope)
        gateway = gateway_of(scope)
        request, headers = await read_request(scope, receive, wire.BatchRequest, BATCH, "batches")
        if request.endpoint not in gateway.batch_endpoints:
            raise InvalidArgument(
                f"endpoint must be one of {', '.join(gateway.batch_endpoints)}",
                field="endpoint",
                allowed=gateway.batch_endpoints,
            )
        principal = current_principal()
        principal.require("inference")
        _check_input(await storage.files.get(principal.tenant, request.input_file_id))
        expiry = request.output_expires_after
        batch = Batch(
            id=new_object_id("batch_"),
            tenant=principal.tenant,
            status=BatchStatus.VALIDATING,
            input_file_id=request.input_file_id,
            expires_at=int(time.time()) + WINDOW_SECONDS,
            record=BatchRecord(
                endpoint=request.endpoint,
                completion_window=request.completion_window,
                principal=principal,
                metadata=request.metadata,
                output_expires_seconds=expiry.seconds if expiry else None,
            ),
        )
        batch.enter(BatchStatus.VALIDATING)
        await storage.batches.add(batch)
        assert gateway.batches is not None
        gateway.batches.wake()
        body = msgspec.json.encode(wire.batch_object(batch))
        await send_response(send, 200, body, headers=headers)

    async def _list(self, scope: Scope, send: Send) -> None:
        query = query_of(scope, wire.BatchQuery)
        batches, has_more = await storage_of(scope).batches.list(
            current_principal().tenant, after=query.after, limit=query.limit
        )
        shown = wire.BatchList(
            [wire.batch_object(batch) for batch in batches],
            first_id=batches[0].id if batches else None,
            last_id=batches[-1].id if batches else None,
            has_more=has_more,
        )
        await send_response(send, 200, msgspec.json.encode(shown))


class RetrieveBatch:
    """GET one batch."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        batch = await storage_of(scope).batches.get(
            current_principal().tenant, scope["path_params"]["batch"]
        )
        await send_response(send, 200, msgspec.json.encode(wire.batch_object(batch)))


class CancelBatch:
    """POST ends a batch; what is finished is kept."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        batch = await storage_of(scope).batches.cancel(
            current_principal().tenant, scope["path_params"]["batch"]
        )
        assert gateway.batches is not None
        gateway.batches.wake(batch.id)
        await send_response(send, 200, msgspec.json.encode(wire.batch_object(batch)))


def _check_input(file: StoredFile) -> None:
    if file.purpose != "batch":
        raise InvalidArgument(
            f"{file.id} was uploaded for {file.purpose}, not for batch", field="input_file_id"
        )
