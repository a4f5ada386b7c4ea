"""POST /v1/embeddings, /tokenize and /detokenize."""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Sequence
from sys import byteorder

from antiphon_core.errors import InvalidArgument
from msgspec import UNSET

from antiphon_gateway.convert.chat import chat_input
from antiphon_gateway.domain.generation import ChatInput
from antiphon_gateway.http import Receive, Scope, Send, cancel_on_disconnect, send_response
from antiphon_gateway.openai import text as wire
from antiphon_gateway.openai.chat import ChatRequest
from antiphon_gateway.openai.chat_output import encode
from antiphon_gateway.openai.fields import DETOKENIZE, EMBEDDING, TOKENIZE
from antiphon_gateway.routes.common import gateway_of, read_request


class Embeddings:
    """Vectors of texts or token ids."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        request, headers = await read_request(
            scope, receive, wire.EmbeddingRequest, EMBEDDING, "embeddings"
        )
        model = gateway.backends.llm.resolve(request.model or "")
        inputs = _inputs(request)
        async with cancel_on_disconnect(receive):
            vectors, tokens = await gateway.backends.llm.embed(
                inputs,
                model=model.id,
                dimensions=request.dimensions or 0,
                timeout=gateway.settings.limits.request_seconds,
            )
        in_base64 = request.encoding_format == "base64"
        response = wire.EmbeddingList(
            data=[
                wire.Embedding(index, _base64(vector) if in_base64 else list(vector))
                for index, vector in enumerate(vectors)
            ],
            model=request.model or model.id,
            usage=wire.EmbeddingUsage(tokens, tokens),
        )
        await send_response(send, 200, encode(response), headers=headers)


class Tokenize:
    """Tokens of a prompt, or of messages exactly as chat renders them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        llm = gateway_of(scope).backends.llm
        request, headers = await read_request(
            scope, receive, wire.TokenizeRequest, TOKENIZE, "tokenize"
        )
        model = llm.resolve(request.model or "")
        source: ChatInput | str
        if request.messages is not None:
            chat = ChatRequest(
                messages=request.messages,
                tools=request.tools,
                chat_template_kwargs=request.chat_template_kwargs,
                continue_final_message=request.continue_final_message,
            )
            source = chat_input(chat, model)
        elif request.prompt is not None:
            source = request.prompt
        else:
            raise InvalidArgument(
                "prompt or messages is required", reason="MISSING_FIELD", field="prompt"
            )
        async with cancel_on_disconnect(receive):
            tokens = await llm.tokenize(
                source, model=model.id, omit_special_tokens=request.add_special_tokens is False
            )
        response = wire.TokenizeResponse(
            count=len(tokens.ids),
            max_model_len=tokens.context_limit,
            tokens=list(tokens.ids),
            rendered=tokens.rendered or UNSET,
        )
        await send_response(send, 200, encode(response), headers=headers)


class Detokenize:
    """The text of token ids."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        llm = gateway_of(scope).backends.llm
        request, headers = await read_request(
            scope, receive, wire.DetokenizeRequest, DETOKENIZE, "detokenize"
        )
        model = llm.resolve(request.model or "")
        async with cancel_on_disconnect(receive):
            text = await llm.detokenize(request.tokens, model=model.id)
        await send_response(send, 200, encode(wire.DetokenizeResponse(text)), headers=headers)


def _inputs(request: wire.EmbeddingRequest) -> list[str | list[int]]:
    given = request.input
    if isinstance(given, str):
        given = [given]
    kinds = {type(item) for item in given}
    if len(kinds) > 1:
        raise InvalidArgument(
            "input must be a string, strings, token ids, or lists of token ids, not a mixture",
            field="input",
        )
    if kinds == {int}:
        return [[item for item in given if isinstance(item, int)]]
    inputs = [item for item in given if not isinstance(item, int)]
    for index, item in enumerate(inputs):
        if not item:
            raise InvalidArgument(
                f"input[{index}] is empty", reason="EMPTY_PROMPT", field=f"input[{index}]"
            )
    return inputs


def _base64(vector: Sequence[float]) -> str:
    """Little-endian 32-bit floats."""
    values = array("f", vector)
    if byteorder == "big":
        values.byteswap()
    return b64encode(values.tobytes()).decode()
