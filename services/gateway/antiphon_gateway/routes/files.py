"""/v1/files: upload, list, retrieve, content, delete."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
from antiphon_core.errors import InvalidArgument

from antiphon_gateway.http import (
    Receive,
    Scope,
    Send,
    body_chunks,
    cancel_on_disconnect,
    header,
    send_response,
)
from antiphon_gateway.identity.principal import current_principal
from antiphon_gateway.multipart import Form, read_form
from antiphon_gateway.openai import files as wire
from antiphon_gateway.openai.decode import apply_policies, validation_error
from antiphon_gateway.openai.fields import FILE
from antiphon_gateway.routes.common import gateway_of, strict_fields
from antiphon_gateway.routes.stored import query_of, storage_of
from antiphon_gateway.sse import StreamWriter
from antiphon_gateway.store.records import StoredFile, new_object_id

if TYPE_CHECKING:
    from antiphon_gateway.store.blobs import BlobWriter

_LONGEST_NAME = 512


class Files:
    """POST uploads to the disk as it arrives; GET lists."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self._upload(scope, receive, send)
        else:
            await self._list(scope, send)

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        storage = storage_of(scope)
        storage.store.require_available()
        async with storage.store.blobs.writer() as writer:
            chunks = body_chunks(receive)
            content_type = header(scope, b"content-type")
            form = await read_form(chunks, content_type, "file", sink=writer.write)
            given = {
                name.partition("[")[0]: msgspec.json.encode(values[-1])
                for name, values in form.fields.items()
            }
            headers = apply_policies(
                given, FILE, endpoint="files", strict_fields=strict_fields(gateway)
            )
            file = _described(form, writer, gateway.settings.limits.file_bytes)
            await writer.commit()
            await storage.files.add(file)
        body = msgspec.json.encode(wire.file_object(file))
        await send_response(send, 200, body, headers=headers)

    async def _list(self, scope: Scope, send: Send) -> None:
        query = query_of(scope, wire.FileQuery)
        files, has_more = await storage_of(scope).files.list(
            current_principal().tenant,
            after=query.after,
            limit=query.limit,
            newest_first=query.order == "desc",
            purpose=query.purpose or "",
        )
        shown = wire.FileList(
            [wire.file_object(file) for file in files],
            first_id=files[0].id if files else None,
            last_id=files[-1].id if files else None,
            has_more=has_more,
        )
        await send_response(send, 200, msgspec.json.encode(shown))


class File:
    """One file: GET describes it, DELETE forgets it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        storage = storage_of(scope)
        tenant, file_id = current_principal().tenant, scope["path_params"]["file"]
        if scope["method"] == "DELETE":
            file = await storage.files.delete(tenant, file_id)
            await storage.store.blobs.delete(file.blob)
            answer: object = wire.FileDeleted(file_id)
        else:
            answer = wire.file_object(await storage.files.get(tenant, file_id))
        await send_response(send, 200, msgspec.json.encode(answer))


class FileContent:
    """GET sends the contents as they were uploaded or made."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        storage = storage_of(scope)
        file = await storage.files.get(current_principal().tenant, scope["path_params"]["file"])
        writer = StreamWriter(send, gateway_of(scope).settings.limits)
        chunks = storage.store.blobs.chunks(file.blob)
        async with cancel_on_disconnect(receive), writer.watched(pings=False), aclosing(chunks):
            await writer.start(
                [(b"content-length", str(file.bytes).encode())],
                [(b"content-type", b"application/octet-stream")],
            )
            async for chunk in chunks:
                await writer.write(chunk)
        await writer.end()


def _described(form: Form, writer: BlobWriter, limit: int) -> StoredFile:
    """The row of an uploaded file.

    Raises:
        InvalidArgument: a field is missing or wrong, or the file is too large.
    """
    if form.file is None:
        raise InvalidArgument("file is required", reason="MISSING_FIELD", field="file")
    if writer.size > limit:
        raise InvalidArgument(
            f"the file has more than {limit} bytes",
            reason="TOO_LARGE",
            field="file",
            metadata={"limit": str(limit), "observed": str(writer.size)},
        )
    fields = _fields_of(form)
    now = int(time.time())
    return StoredFile(
        id=new_object_id("file-"),
        tenant=current_principal().tenant,
        filename=form.file.name.replace("\0", "")[:_LONGEST_NAME],
        purpose=fields.purpose,
        bytes=writer.size,
        created_at=now,
        blob=writer.name,
        expires_at=now + fields.expiry_seconds if fields.expiry_seconds else None,
    )


def _fields_of(form: Form) -> wire.FileForm:
    given = {name: values[-1] for name, values in form.fields.items() if values[-1]}
    try:
        fields = msgspec.convert(given, wire.FileForm, strict=False)
    except msgspec.ValidationError as error:
        raise validation_error(error, wire.FileForm) from None
    for name, value, other in (
        ("expires_after[anchor]", fields.expiry_anchor, fields.expiry_seconds),
        ("expires_after[seconds]", fields.expiry_seconds, fields.expiry_anchor),
    ):
        if value is None and other is not None:
            raise InvalidArgument(f"{name} is required", reason="MISSING_FIELD", field=name)
    return fields
