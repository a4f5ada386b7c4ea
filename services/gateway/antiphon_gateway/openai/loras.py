"""Wire models of /v1/loras."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon_gateway.domain.catalog import ModelInfo


class LoraRequest(Struct):
    """POST /v1/loras; null is the same as absent."""

    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    path: Annotated[str, Meta(min_length=1, max_length=1024)]
    """Of the adapter's directory, beneath the configured root."""
    base_model: str | None = None
    """The model that it belongs to, where several are served."""
    shared: bool | None = None
    """Every tenant may use it; asks for the scope ``admin``."""


class Lora(Struct):
    """A loaded adapter. ``id`` and ``base_model:id`` are models in requests."""

    id: str
    base_model: str
    created_at: int
    shared: bool
    object: Literal["lora"] = "lora"


class LoraList(Struct):
    """GET /v1/loras."""

    data: list[Lora]
    object: Literal["list"] = "list"


class LoraDeleted(Struct):
    """DELETE /v1/loras/{name}."""

    id: str
    deleted: bool = True
    object: Literal["lora"] = "lora"


def lora(model: ModelInfo) -> Lora:
    """The wire form of an adapter."""
    return Lora(model.id, model.base_model, model.created_at, model.shared)
