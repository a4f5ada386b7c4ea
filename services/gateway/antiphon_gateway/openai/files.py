"""Wire models of /v1/files."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from antiphon_gateway.store.records import StoredFile

SHORTEST_LIFE_SECONDS = 3600
LONGEST_LIFE_SECONDS = 30 * 24 * 3600

MOST_LISTED = 10_000

LifeSeconds = Annotated[int, Meta(ge=SHORTEST_LIFE_SECONDS, le=LONGEST_LIFE_SECONDS)]
UploadPurpose = Literal["batch", "user_data"]


class FileForm(Struct):
    """Fields of POST /v1/files beside the file."""

    purpose: UploadPurpose
    expiry_anchor: Literal["created_at"] | None = field(default=None, name="expires_after[anchor]")
    expiry_seconds: LifeSeconds | None = field(default=None, name="expires_after[seconds]")


class FileQuery(Struct):
    """Which files GET /v1/files lists."""

    after: Annotated[str, Meta(pattern="^file-[A-Za-z0-9_-]{1,64}$")] = ""
    limit: Annotated[int, Meta(ge=1, le=MOST_LISTED)] = MOST_LISTED
    order: Literal["asc", "desc"] = "desc"
    purpose: UploadPurpose | Literal["batch_output"] | None = None


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
