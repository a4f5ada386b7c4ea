"""LlmService: each method converts, calls the front, converts back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import NoReturn

import grpc
from antiphon.llm.v1 import generate_pb2, llm_service_pb2
from antiphon.llm.v1.llm_service_pb2_grpc import LlmServiceServicer
from antiphon_core.errors import Unimplemented
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.rpc.context import ALL_TENANTS, current

from antiphon_llm import convert
from antiphon_llm.front.service import LlmFront
from antiphon_llm.multiplex import Multiplexer

SERVICE_NAME = "antiphon.llm.v1.LlmService"
OPEN_METHODS = ("GetModel", "ListModels")
"""Answered in every state, as soon as the model is known."""


class LlmServicer(LlmServiceServicer):
    """Serves one model. Errors of the domain become statuses in the server's interceptor."""

    def __init__(self, front: LlmFront, lifecycle: Lifecycle) -> None:
        self._front = front
        self._lifecycle = lifecycle

    async def Generate(
        self, request: generate_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generate_pb2.GenerateResponse]:
        """Streams one request's events; the caller's leaving cancels it in the engine."""
        generation = await self._front.generate(
            convert.generation_request(request), convert.scope_of_call(current())
        )
        async with aclosing(generation.events()) as events:
            async for event in events:
                yield convert.response(event)

    async def GenerateMany(
        self,
        request_iterator: AsyncIterator[generate_pb2.GenerateManyRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[generate_pb2.GenerateManyResponse]:
        """Streams many requests' events, one message per engine step."""
        many = Multiplexer(self._front, current(), self._lifecycle)
        async with aclosing(many.run(request_iterator)) as responses:
            async for response in responses:
                yield response

    async def Embed(
        self, request: llm_service_pb2.EmbedRequest, context: grpc.aio.ServicerContext
    ) -> llm_service_pb2.EmbedResponse:
        """One vector per input."""
        vectors, tokens = await self._front.embed(
            request.model,
            convert.embed_inputs(request),
            request.dimensions,
            convert.scope_of_call(current()),
        )
        return llm_service_pb2.EmbedResponse(
            vectors=[llm_service_pb2.EmbedVector(values=vector) for vector in vectors],
            prompt_tokens=tokens,
            model=self._front.card(request.model).name,
        )

    async def Tokenize(
        self, request: llm_service_pb2.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> llm_service_pb2.TokenizeResponse:
        """Renders and tokenises exactly as Generate does."""
        encoded = await self._front.tokenize(
            request.model,
            convert.tokenize_input(request),
            omit_special_tokens=request.omit_special_tokens,
        )
        return llm_service_pb2.TokenizeResponse(
            ids=encoded.ids,
            context_limit=self._front.card().context_limit,
            rendered=encoded.rendered,
        )

    async def Detokenize(
        self, request: llm_service_pb2.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> llm_service_pb2.DetokenizeResponse:
        """The text of ids."""
        text = self._front.detokenize(request.model, request.ids)
        return llm_service_pb2.DetokenizeResponse(text=text)

    async def GetModel(
        self, request: llm_service_pb2.GetModelRequest, context: grpc.aio.ServicerContext
    ) -> llm_service_pb2.GetModelResponse:
        """Describes the served model."""
        card = self._front.card(request.model, current().tenant)
        return llm_service_pb2.GetModelResponse(model=convert.model(card))

    async def ListModels(
        self, request: llm_service_pb2.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> llm_service_pb2.ListModelsResponse:
        """The served model and the adapters that the caller may use."""
        cards = [self._front.card(), *self._front.adapters.visible(_listed_tenant(context))]
        return llm_service_pb2.ListModelsResponse(models=map(convert.model, cards))

    async def Converse(
        self,
        request_iterator: AsyncIterator[llm_service_pb2.ConverseRequest],
        context: grpc.aio.ServicerContext,
    ) -> NoReturn:
        """Needs a full-duplex model."""
        raise Unimplemented("the served model does not listen and speak at once")

    async def Score(
        self, request: llm_service_pb2.ScoreRequest, context: grpc.aio.ServicerContext
    ) -> llm_service_pb2.ScoreResponse:
        """One score per pair."""
        scores = await self._front.score(
            request.model,
            [(pair.query, pair.document) for pair in request.pairs],
            convert.scope_of_call(current()),
        )
        return llm_service_pb2.ScoreResponse(
            scores=scores.values,
            prompt_tokens=scores.prompt_tokens,
            model=self._front.card().name,
            method=scores.method,
        )

    async def LoadAdapter(
        self, request: llm_service_pb2.LoadAdapterRequest, context: grpc.aio.ServicerContext
    ) -> llm_service_pb2.LoadAdapterResponse:
        """Loads an adapter for the caller's tenant, or for all."""
        card = await self._front.adapters.load(
            request.name, request.path, tenant=current().tenant, shared=request.shared
        )
        return llm_service_pb2.LoadAdapterResponse(model=convert.model(card))

    async def UnloadAdapter(
        self, request: llm_service_pb2.UnloadAdapterRequest, context: grpc.aio.ServicerContext
    ) -> llm_service_pb2.UnloadAdapterResponse:
        """Unloads an adapter that no request uses."""
        await self._front.adapters.unload(
            request.name, tenant=current().tenant, shared=request.shared
        )
        return llm_service_pb2.UnloadAdapterResponse()

    async def ListAdapters(
        self, request: llm_service_pb2.ListAdaptersRequest, context: grpc.aio.ServicerContext
    ) -> llm_service_pb2.ListAdaptersResponse:
        """The adapters that the caller may use."""
        cards = self._front.adapters.visible(_listed_tenant(context))
        return llm_service_pb2.ListAdaptersResponse(models=map(convert.model, cards))


def _listed_tenant(context: grpc.aio.ServicerContext) -> str | None:
    """Whose adapters a list shows; None is everybody's, for the gateway's routing."""
    metadata = context.invocation_metadata() or ()
    return (
        None
        if (ALL_TENANTS, "1") in {(key, value) for key, value in metadata}
        else (current().tenant)
    )
