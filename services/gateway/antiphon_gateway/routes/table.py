"""The route table: each endpoint, and what the OpenAPI document says of it."""

from __future__ import annotations

from antiphon_gateway.openai import batches as batch_wire
from antiphon_gateway.openai import (
    chat,
    chat_output,
    completions,
    fields,
    files,
    loras,
    ranking,
    response_output,
    responses,
    text,
)
from antiphon_gateway.openapi.operation import (
    CALL,
    OBJECT,
    Endpoint,
    FormBody,
    JsonBody,
    Operation,
)
from antiphon_gateway.routes.audio_table import audio_routes
from antiphon_gateway.routes.batches import Batches, CancelBatch, RetrieveBatch
from antiphon_gateway.routes.catalog import (
    ListModels,
    Model,
    ModelList,
    RetrieveModel,
)
from antiphon_gateway.routes.chat import ChatCompletions
from antiphon_gateway.routes.completions import Completions
from antiphon_gateway.routes.files import File, FileContent, Files
from antiphon_gateway.routes.loras import Lora, Loras
from antiphon_gateway.routes.operations import Health, HealthReport, Readiness
from antiphon_gateway.routes.ranking import Rerank, Score
from antiphon_gateway.routes.responses import Responses
from antiphon_gateway.routes.stored_responses import CancelResponse, InputItems, StoredResponse
from antiphon_gateway.routes.text import Detokenize, Embeddings, Tokenize


def rest_routes() -> list[Endpoint]:
    """Every REST route, the busiest first."""
    return [
        *_generation(),
        *_reading(),
        *_responses(),
        *audio_routes(),
        *_catalog(),
        *_files(),
        *_batches(),
        *_probes(),
    ]


def _generation() -> list[Endpoint]:
    return [
        Endpoint(
            "/v1/chat/completions",
            ChatCompletions(),
            post=Operation(
                "createChatCompletion",
                "Continues a conversation.",
                JsonBody(chat.ChatRequest, fields.CHAT),
                answer=(chat_output.Completion,),
                events=(chat_output.Chunk,),
                errors=CALL,
            ),
        ),
        Endpoint(
            "/v1/completions",
            Completions(),
            post=Operation(
                "createCompletion",
                "Continues or scores texts.",
                JsonBody(completions.CompletionRequest, fields.COMPLETION),
                answer=(completions.Completion,),
                events=(completions.Completion,),
                errors=CALL,
            ),
        ),
    ]


def _reading() -> list[Endpoint]:
    """What is read off prompts, without drawing."""
    return [
        Endpoint(
            "/v1/embeddings",
            Embeddings(),
            post=Operation(
                "createEmbedding",
                "Turns texts into vectors.",
                JsonBody(text.EmbeddingRequest, fields.EMBEDDING),
                answer=(text.EmbeddingList,),
                errors=CALL,
            ),
        ),
        Endpoint(
            "/v1/rerank",
            Rerank(),
            post=Operation(
                "createRerank",
                "Orders documents by their relevance to a query.",
                JsonBody(ranking.RerankRequest, fields.RERANK),
                answer=(ranking.Reranking,),
                errors=CALL,
            ),
        ),
        Endpoint(
            "/v1/score",
            Score(),
            post=Operation(
                "createScore",
                "Scores pairs of texts.",
                JsonBody(ranking.ScoreRequest, fields.SCORE),
                answer=(ranking.ScoreList,),
                errors=CALL,
            ),
        ),
        Endpoint(
            "/tokenize",
            Tokenize(),
            post=Operation(
                "tokenize",
                "Shows the tokens of a prompt, or of messages as chat renders them.",
                JsonBody(text.TokenizeRequest, fields.TOKENIZE),
                answer=(text.TokenizeResponse,),
                errors=CALL,
            ),
        ),
        Endpoint(
            "/detokenize",
            Detokenize(),
            post=Operation(
                "detokenize",
                "Shows the text of tokens.",
                JsonBody(text.DetokenizeRequest, fields.DETOKENIZE),
                answer=(text.DetokenizeResponse,),
                errors=CALL,
            ),
        ),
    ]


def _responses() -> list[Endpoint]:
    return [
        Endpoint(
            "/v1/responses",
            Responses(),
            post=Operation(
                "createResponse",
                "Answers a conversation and keeps it.",
                JsonBody(responses.ResponseRequest, fields.RESPONSE),
                answer=(response_output.Response,),
                events=response_output.EVENTS,
                errors=CALL,
            ),
        ),
        Endpoint(
            "/v1/responses/{response}",
            StoredResponse(),
            get=Operation(
                "retrieveResponse",
                "Shows a response.",
                query=responses.RetrieveQuery,
                answer=(response_output.Response,),
                errors=OBJECT,
            ),
            delete=Operation(
                "deleteResponse",
                "Forgets a response.",
                answer=(responses.ResponseDeleted,),
                errors=(404, 409),
            ),
        ),
        Endpoint(
            "/v1/responses/{response}/cancel",
            CancelResponse(),
            post=Operation(
                "cancelResponse",
                "Ends a response that is being streamed.",
                answer=(response_output.Response,),
                errors=OBJECT,
            ),
        ),
        Endpoint(
            "/v1/responses/{response}/input_items",
            InputItems(),
            get=Operation(
                "listInputItems",
                "Lists what a response was made from.",
                query=responses.InputItemsQuery,
                answer=(responses.ItemList,),
                errors=OBJECT,
            ),
        ),
    ]


def _catalog() -> list[Endpoint]:
    return [
        Endpoint(
            "/v1/models",
            ListModels(),
            get=Operation("listModels", "Lists what a model field may name.", answer=(ModelList,)),
        ),
        Endpoint(
            "/v1/models/{model:path}",
            RetrieveModel(),
            get=Operation("retrieveModel", "Describes one model.", answer=(Model,), errors=OBJECT),
        ),
        Endpoint(
            "/v1/loras",
            Loras(),
            get=Operation("listLoras", "Lists the adapters.", answer=(loras.LoraList,)),
            post=Operation(
                "loadLora",
                "Loads an adapter for the caller's tenant.",
                JsonBody(loras.LoraRequest, fields.LORA),
                answer=(loras.Lora,),
                errors=(*CALL, 409),
            ),
        ),
        Endpoint(
            "/v1/loras/{name}",
            Lora(),
            get=Operation(
                "retrieveLora", "Describes an adapter.", answer=(loras.Lora,), errors=OBJECT
            ),
            delete=Operation(
                "unloadLora",
                "Unloads an adapter that no request uses.",
                answer=(loras.LoraDeleted,),
                errors=(*CALL, 409),
            ),
        ),
    ]


def _files() -> list[Endpoint]:
    return [
        Endpoint(
            "/v1/files",
            Files(),
            get=Operation(
                "listFiles", "Lists files.", query=files.FileQuery, answer=(files.FileList,)
            ),
            post=Operation(
                "createFile",
                "Uploads a file.",
                FormBody(files.FileForm, fields.FILE),
                answer=(files.FileObject,),
            ),
        ),
        Endpoint(
            "/v1/files/{file}",
            File(),
            get=Operation(
                "retrieveFile", "Describes a file.", answer=(files.FileObject,), errors=OBJECT
            ),
            delete=Operation(
                "deleteFile", "Forgets a file.", answer=(files.FileDeleted,), errors=OBJECT
            ),
        ),
        Endpoint(
            "/v1/files/{file}/content",
            FileContent(),
            get=Operation(
                "downloadFile",
                "Sends the contents of a file.",
                contents=("application/octet-stream",),
                errors=OBJECT,
            ),
        ),
    ]


def _batches() -> list[Endpoint]:
    return [
        Endpoint(
            "/v1/batches",
            Batches(),
            get=Operation(
                "listBatches",
                "Lists batches, newest first.",
                query=batch_wire.BatchQuery,
                answer=(batch_wire.BatchList,),
            ),
            post=Operation(
                "createBatch",
                "Takes a file of requests to work on.",
                JsonBody(batch_wire.BatchRequest, fields.BATCH),
                answer=(batch_wire.BatchObject,),
                errors=OBJECT,
            ),
        ),
        Endpoint(
            "/v1/batches/{batch}",
            RetrieveBatch(),
            get=Operation(
                "retrieveBatch",
                "Describes a batch.",
                answer=(batch_wire.BatchObject,),
                errors=OBJECT,
            ),
        ),
        Endpoint(
            "/v1/batches/{batch}/cancel",
            CancelBatch(),
            post=Operation(
                "cancelBatch",
                "Ends a batch; what is finished is kept.",
                answer=(batch_wire.BatchObject,),
                errors=(404, 409),
            ),
        ),
    ]


def _probes() -> list[Endpoint]:
    return [
        Endpoint(
            "/health",
            Health(),
            get=Operation("live", "Tells that the process works.", answer=(HealthReport,)),
        ),
        Endpoint(
            "/health/ready",
            Readiness(),
            get=Operation(
                "ready",
                "Tells whether requests are served.",
                answer=(HealthReport,),
                others={503: HealthReport},
            ),
        ),
    ]
