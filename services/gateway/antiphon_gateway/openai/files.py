"""Wire models of /v1/files."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon_gateway.store.records import StoredFile

SHORTEST_LIFE_SECONDS = 3600
LONGEST_LIFE_SECONDS = 30 * 24 * 3600
UPLOAD_PURPOSES = ("batch", "user_data")
PURPOSES = (*UPLOAD_PURPOSES, "batch_output")

LifeSeconds = Annotated[int, Meta(ge=SHORTEST_LIFE_SECONDS, le=LONGEST_LIFE_SECONDS)]


class FileObject(Struct):
    """A file as clients see it."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


class FileList(Struct):
    """GET /v1/files."""

    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class FileDeleted(Struct):
    """DELETE /v1/files/{id}."""

    id: str
    deleted: bool = True
    object: Literal["file"] = "file"


def file_object(file: StoredFile) -> FileObject:
    """The wire form of a stored file."""
    return FileObject(
        id=file.id,
        bytes=file.bytes,
        created_at=file.created_at,
        filename=file.filename,
        purpose=file.purpose,
        expires_at=file.expires_at,
    )
