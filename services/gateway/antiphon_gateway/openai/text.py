"""Wire models of the embedding and token endpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from antiphon_gateway.openai.chat import Message, Tool
from antiphon_gateway.openai.common import PriorityName, TokenId

MAX_EMBEDDING_INPUTS = 2048

EmbeddingItem = str | TokenId | Annotated[list[TokenId], Meta(min_length=1)]


class EmbeddingRequest(Struct):
    """POST /v1/embeddings; null is the same as absent."""

    input: str | Annotated[list[EmbeddingItem], Meta(min_length=1, max_length=MAX_EMBEDDING_INPUTS)]
    model: str | None = None
    dimensions: Annotated[int, Meta(ge=1, le=65536)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    priority: PriorityName | None = None


class Embedding(Struct):
    """One vector."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(Struct):
    """Token counts of an embedding request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    """The response, in input order."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


class TokenizeRequest(Struct):
    """POST /tokenize: a prompt, or messages as chat renders them."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Raw] | None = None
    continue_final_message: bool | None = None


class TokenizeResponse(Struct):
    """Token ids of the input."""

    count: int
    max_model_len: int
    tokens: list[int]
    rendered: str | UnsetType = UNSET


class DetokenizeRequest(Struct):
    """POST /detokenize."""

    tokens: list[TokenId]
    model: str | None = None


class DetokenizeResponse(Struct):
    """The text of the tokens."""

    prompt: str
