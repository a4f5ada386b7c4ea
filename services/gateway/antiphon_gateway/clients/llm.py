"""The language-model services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import grpc.aio
from antiphon.llm.v1 import generate_pb2, llm_service_pb2, llm_service_pb2_grpc
from antiphon_core.rpc.context import ALL_TENANTS, current
from antiphon_core.rpc.streams import result

from antiphon_gateway.clients.multiplex import GenerationMultiplexer
from antiphon_gateway.clients.stream import BackendStream, EventStream
from antiphon_gateway.convert import generation as convert
from antiphon_gateway.convert.affinity import affinity_key
from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.domain.generation import (
    ChatInput,
    Completed,
    GenerateEvent,
    GenerateRequest,
    Tokenized,
)

AFFINITY = "x-antiphon-affinity"
"""Metadata that a balancing proxy chooses the replica by."""

_ALL_TENANTS = ((ALL_TENANTS, "1"),)


class GenerationStream(EventStream[GenerateEvent], Protocol):
    """Accepted, deltas, one Finished per choice, Completed.

    Use as ``async with llm.generate(request) as events: async for event in events``. Leaving the
    block ends the request at the service. Iteration raises its typed AntiphonError. ``cancel``
    may be called at any time, from any task of the loop.
    """

    def cancel(self) -> None: ...


class LlmBackend:
    """One llm service; serves one model and its adapters.

    Args:
        channel: to the service, or to the proxy before it.
        multiplexed: carry all generations on one stream. It costs a fraction per token, but all
            of them reach the same replica, so it is not for a channel to a balancing proxy.
    """

    def __init__(self, channel: grpc.aio.Channel, *, multiplexed: bool) -> None:
        self._stub: Any = llm_service_pb2_grpc.LlmServiceStub(channel)
        self._many = GenerationMultiplexer(self._stub.GenerateMany) if multiplexed else None

    def close(self) -> None:
        """Ends the generations of the shared stream."""
        if self._many is not None:
            self._many.close()

    def generate(self, request: GenerateRequest) -> GenerationStream:
        """Starts a generation for the current request context."""
        if self._many is not None:
            return self._many.start(request)
        key = affinity_key(request, current().tenant)
        call = self._stub.Generate(
            convert.request_to_proto(request),
            timeout=request.timeout,
            metadata=((AFFINITY, key),) if key else (),
        )
        return BackendStream(call, convert.response_to_event, Completed)

    async def tokenize(
        self, source: ChatInput | str, *, model: str = "", omit_special_tokens: bool = False
    ) -> Tokenized:
        """Renders and tokenises exactly as a generation would."""
        request = llm_service_pb2.TokenizeRequest(
            model=model, omit_special_tokens=omit_special_tokens
        )
        if isinstance(source, str):
            request.text = source
        else:
            request.chat.CopyFrom(convert.chat_to_proto(source))
        return convert.tokenized_from_proto(await result(self._stub.Tokenize(request)))

    async def detokenize(self, ids: Sequence[int], *, model: str = "") -> str:
        """The text of token ids; invalid UTF-8 shows as U+FFFD."""
        request = llm_service_pb2.DetokenizeRequest(model=model, ids=ids)
        return (await result(self._stub.Detokenize(request))).text

    async def score(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        model: str = "",
        timeout: float | None = None,
    ) -> tuple[list[float], int, str]:
        """Scores in the order of the (query, document) pairs, the number of prompt tokens, and
        what the scores are."""
        request = llm_service_pb2.ScoreRequest(model=model)
        for query, document in pairs:
            request.pairs.add(query=query, document=document)
        response = await result(self._stub.Score(request, timeout=timeout))
        return list(response.scores), response.prompt_tokens, response.method

    async def embed(
        self,
        inputs: Sequence[str | Sequence[int]],
        *,
        model: str = "",
        dimensions: int = 0,
        timeout: float | None = None,
    ) -> tuple[list[Sequence[float]], int]:
        """Vectors in input order, and the number of prompt tokens."""
        request = llm_service_pb2.EmbedRequest(model=model, dimensions=dimensions)
        for item in inputs:
            if isinstance(item, str):
                request.inputs.add(text=item)
            else:
                request.inputs.add(tokens=generate_pb2.TokenInput(ids=item))
        response = await result(self._stub.Embed(request, timeout=timeout))
        return [list(vector.values) for vector in response.vectors], response.prompt_tokens

    async def list_models(self) -> tuple[ModelInfo, ...]:
        """The served model and its adapters, those of every tenant."""
        response = await result(
            self._stub.ListModels(
                llm_service_pb2.ListModelsRequest(), timeout=2.0, metadata=_ALL_TENANTS
            )
        )
        return tuple(convert.model_from_proto(model) for model in response.models)

    async def load_adapter(self, name: str, path: str, shared: bool, timeout: float) -> ModelInfo:
        """Loads an adapter for the current tenant, or for all."""
        request = llm_service_pb2.LoadAdapterRequest(name=name, path=path, shared=shared)
        response = await result(self._stub.LoadAdapter(request, timeout=timeout))
        return convert.model_from_proto(response.model)

    async def unload_adapter(self, name: str, shared: bool, timeout: float) -> None:
        """Unloads an adapter of the current tenant, or one of all."""
        request = llm_service_pb2.UnloadAdapterRequest(name=name, shared=shared)
        await result(self._stub.UnloadAdapter(request, timeout=timeout))
