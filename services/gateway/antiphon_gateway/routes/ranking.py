"""POST /v1/rerank and /v1/score."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

from antiphon_core.errors import InvalidArgument
from msgspec import UNSET

from antiphon_gateway.http import Receive, Scope, Send, cancel_on_disconnect, send_response
from antiphon_gateway.openai import ranking as wire
from antiphon_gateway.openai.chat_output import encode
from antiphon_gateway.openai.fields import RERANK, SCORE
from antiphon_gateway.openai.text import MAX_EMBEDDING_INPUTS, EmbeddingUsage
from antiphon_gateway.routes.common import gateway_of, new_id, read_request


class Rerank:
    """Documents in the order of their relevance to a query."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        request, headers = await read_request(scope, receive, wire.RerankRequest, RERANK, "rerank")
        model = gateway.backends.llm.resolve(request.model or "")
        texts = [item if isinstance(item, str) else item.text for item in request.documents]
        _require_text("query", [request.query])
        _require_text("documents", texts)
        async with cancel_on_disconnect(receive):
            scores, tokens, method = await gateway.backends.llm.score(
                [(request.query, text) for text in texts],
                model=model.id,
                timeout=gateway.settings.limits.request_seconds,
            )
        order = sorted(range(len(texts)), key=lambda index: (-scores[index], index))
        response = wire.Reranking(
            id=new_id("rerank"),
            model=request.model or model.id,
            results=[
                wire.RankedDocument(
                    index,
                    scores[index],
                    wire.Document(texts[index]) if request.return_documents else UNSET,
                )
                for index in order[: request.top_n]
            ],
            usage=EmbeddingUsage(tokens, tokens),
            method=cast(wire.Method, method),
        )
        await send_response(send, 200, encode(response), headers=headers)


class Score:
    """Scores of pairs of texts."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        request, headers = await read_request(scope, receive, wire.ScoreRequest, SCORE, "score")
        model = gateway.backends.llm.resolve(request.model or "")
        pairs = paired(request.text_1, request.text_2)
        async with cancel_on_disconnect(receive):
            scores, tokens, method = await gateway.backends.llm.score(
                pairs, model=model.id, timeout=gateway.settings.limits.request_seconds
            )
        response = wire.ScoreList(
            id=new_id("score"),
            created=int(time.time()),
            model=request.model or model.id,
            data=[wire.Score(index, value) for index, value in enumerate(scores)],
            usage=EmbeddingUsage(tokens, tokens),
            method=cast(wire.Method, method),
        )
        await send_response(send, 200, encode(response), headers=headers)


def paired(first: str | list[str], second: str | list[str]) -> list[tuple[str, str]]:
    """The pairs of 1 with N, N with 1 or N with N texts.

    Raises:
        InvalidArgument: other counts, or an empty text.
    """
    left = [first] if isinstance(first, str) else first
    right = [second] if isinstance(second, str) else second
    _require_text("text_1", left)
    _require_text("text_2", right)
    if len(left) != len(right) and 1 not in (len(left), len(right)):
        raise InvalidArgument(
            f"text_1 has {len(left)} texts and text_2 {len(right)}; the counts must be equal, or "
            "one of them 1",
            field="text_2",
        )
    count = max(len(left), len(right))
    assert count <= MAX_EMBEDDING_INPUTS
    return list(zip(left * (count // len(left)), right * (count // len(right)), strict=True))


def _require_text(field: str, texts: Sequence[str]) -> None:
    for index, text in enumerate(texts):
        if not text:
            where = field if field == "query" else f"{field}[{index}]"
            raise InvalidArgument(f"{where} is empty", reason="EMPTY_PROMPT", field=where)
