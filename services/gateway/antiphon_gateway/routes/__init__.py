"""The REST routes, each a bare ASGI application."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route

from antiphon_gateway.routes.batches import Batches, CancelBatch, RetrieveBatch
from antiphon_gateway.routes.catalog import ListModels, ListVoices, RetrieveModel
from antiphon_gateway.routes.chat import ChatCompletions
from antiphon_gateway.routes.completions import Completions
from antiphon_gateway.routes.files import File, FileContent, Files
from antiphon_gateway.routes.operations import Health, Readiness
from antiphon_gateway.routes.speech import Speech
from antiphon_gateway.routes.text import Detokenize, Embeddings, Tokenize
from antiphon_gateway.routes.transcriptions import Transcriptions


def rest_routes() -> list[BaseRoute]:
    """Every REST route, the busiest first."""
    post, get = ["POST"], ["GET"]
    return [
        Route("/v1/chat/completions", ChatCompletions(), methods=post),
        Route("/v1/completions", Completions(), methods=post),
        Route("/v1/audio/speech", Speech(), methods=post),
        Route("/v1/audio/transcriptions", Transcriptions(translate=False), methods=post),
        Route("/v1/audio/translations", Transcriptions(translate=True), methods=post),
        Route("/v1/audio/voices", ListVoices(), methods=get),
        Route("/v1/embeddings", Embeddings(), methods=post),
        Route("/v1/models", ListModels(), methods=get),
        Route("/v1/models/{model:path}", RetrieveModel(), methods=get),
        Route("/v1/files", Files(), methods=["GET", "POST"]),
        Route("/v1/files/{file}", File(), methods=["GET", "DELETE"]),
        Route("/v1/files/{file}/content", FileContent(), methods=get),
        Route("/v1/batches", Batches(), methods=["GET", "POST"]),
        Route("/v1/batches/{batch}", RetrieveBatch(), methods=get),
        Route("/v1/batches/{batch}/cancel", CancelBatch(), methods=post),
        Route("/tokenize", Tokenize(), methods=post),
        Route("/detokenize", Detokenize(), methods=post),
        Route("/health", Health(), methods=get),
        Route("/health/ready", Readiness(), methods=get),
    ]
