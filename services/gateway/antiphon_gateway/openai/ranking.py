"""Wire models of reranking and scoring, as Jina, Cohere and vLLM clients send and read them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon_gateway.openai.common import PriorityName
from antiphon_gateway.openai.text import MAX_EMBEDDING_INPUTS, EmbeddingUsage

Texts = Annotated[list[str], Meta(min_length=1, max_length=MAX_EMBEDDING_INPUTS)]
Method = Literal["classifier", "yes_no", "embedding"]


class Document(Struct):
    """A document as an object."""

    text: str


class RerankRequest(Struct):
    """POST /v1/rerank; null is the same as absent."""

    query: str
    documents: Annotated[list[str | Document], Meta(min_length=1, max_length=MAX_EMBEDDING_INPUTS)]
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None
    priority: PriorityName | None = None


class RankedDocument(Struct):
    """One document's place in the order."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class Reranking(Struct):
    """The documents, most relevant first; equal ones as they came."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: EmbeddingUsage
    method: Method
    object: Literal["list"] = "list"


class ScoreRequest(Struct):
    """POST /v1/score; null is the same as absent."""

    text_1: str | Texts
    text_2: str | Texts
    model: str | None = None
    priority: PriorityName | None = None


class Score(Struct):
    """One pair's score."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreList(Struct):
    """The scores in the order of the pairs."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: EmbeddingUsage
    method: Method
    object: Literal["list"] = "list"
