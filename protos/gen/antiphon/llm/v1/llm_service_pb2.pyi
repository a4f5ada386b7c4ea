import datetime

from antiphon.common.v1 import audio_pb2 as _audio_pb2
from antiphon.llm.v1 import chat_pb2 as _chat_pb2
from antiphon.llm.v1 import generate_pb2 as _generate_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConverseRequest(_message.Message):
    __slots__ = ("setup", "frames", "pcm", "tool_result", "context")
    SETUP_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    PCM_FIELD_NUMBER: _ClassVar[int]
    TOOL_RESULT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    setup: ConverseSetup
    frames: _audio_pb2.CodeFrames
    pcm: bytes
    tool_result: _chat_pb2.ChatMessage
    context: _generate_pb2.ChatInput
    def __init__(self, setup: _Optional[_Union[ConverseSetup, _Mapping]] = ..., frames: _Optional[_Union[_audio_pb2.CodeFrames, _Mapping]] = ..., pcm: _Optional[bytes] = ..., tool_result: _Optional[_Union[_chat_pb2.ChatMessage, _Mapping]] = ..., context: _Optional[_Union[_generate_pb2.ChatInput, _Mapping]] = ...) -> None: ...

class ConverseSetup(_message.Message):
    __slots__ = ("model", "context", "sampling", "input_format")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    INPUT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    model: str
    context: _generate_pb2.ChatInput
    sampling: _generate_pb2.SamplingParams
    input_format: _audio_pb2.AudioFormat
    def __init__(self, model: _Optional[str] = ..., context: _Optional[_Union[_generate_pb2.ChatInput, _Mapping]] = ..., sampling: _Optional[_Union[_generate_pb2.SamplingParams, _Mapping]] = ..., input_format: _Optional[_Union[_audio_pb2.AudioFormat, _Mapping]] = ...) -> None: ...

class ConverseResponse(_message.Message):
    __slots__ = ("ready", "tick", "completed")
    READY_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    ready: ConverseReady
    tick: ConverseTick
    completed: _generate_pb2.GenerateCompleted
    def __init__(self, ready: _Optional[_Union[ConverseReady, _Mapping]] = ..., tick: _Optional[_Union[ConverseTick, _Mapping]] = ..., completed: _Optional[_Union[_generate_pb2.GenerateCompleted, _Mapping]] = ...) -> None: ...

class ConverseReady(_message.Message):
    __slots__ = ("tick", "code_format")
    TICK_FIELD_NUMBER: _ClassVar[int]
    CODE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    tick: _duration_pb2.Duration
    code_format: _audio_pb2.CodeFormat
    def __init__(self, tick: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., code_format: _Optional[_Union[_audio_pb2.CodeFormat, _Mapping]] = ...) -> None: ...

class ConverseTick(_message.Message):
    __slots__ = ("index", "text", "codes", "tool_calls", "agent_idle")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    AGENT_IDLE_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    codes: _audio_pb2.CodeFrames
    tool_calls: _containers.RepeatedCompositeFieldContainer[_generate_pb2.ToolCallDelta]
    agent_idle: bool
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., codes: _Optional[_Union[_audio_pb2.CodeFrames, _Mapping]] = ..., tool_calls: _Optional[_Iterable[_Union[_generate_pb2.ToolCallDelta, _Mapping]]] = ..., agent_idle: _Optional[bool] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("model", "inputs", "dimensions")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[EmbedInput]
    dimensions: int
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[EmbedInput, _Mapping]]] = ..., dimensions: _Optional[int] = ...) -> None: ...

class EmbedInput(_message.Message):
    __slots__ = ("text", "tokens")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: _generate_pb2.TokenInput
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Union[_generate_pb2.TokenInput, _Mapping]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("vectors", "prompt_tokens", "model")
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    vectors: _containers.RepeatedCompositeFieldContainer[EmbedVector]
    prompt_tokens: int
    model: str
    def __init__(self, vectors: _Optional[_Iterable[_Union[EmbedVector, _Mapping]]] = ..., prompt_tokens: _Optional[int] = ..., model: _Optional[str] = ...) -> None: ...

class EmbedVector(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("model", "pairs")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    model: str
    pairs: _containers.RepeatedCompositeFieldContainer[ScorePair]
    def __init__(self, model: _Optional[str] = ..., pairs: _Optional[_Iterable[_Union[ScorePair, _Mapping]]] = ...) -> None: ...

class ScorePair(_message.Message):
    __slots__ = ("query", "document")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    query: str
    document: str
    def __init__(self, query: _Optional[str] = ..., document: _Optional[str] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("scores", "prompt_tokens", "model", "method")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    prompt_tokens: int
    model: str
    method: str
    def __init__(self, scores: _Optional[_Iterable[float]] = ..., prompt_tokens: _Optional[int] = ..., model: _Optional[str] = ..., method: _Optional[str] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "chat", "text", "omit_special_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    OMIT_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    chat: _generate_pb2.ChatInput
    text: str
    omit_special_tokens: bool
    def __init__(self, model: _Optional[str] = ..., chat: _Optional[_Union[_generate_pb2.ChatInput, _Mapping]] = ..., text: _Optional[str] = ..., omit_special_tokens: _Optional[bool] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("ids", "context_limit", "rendered")
    IDS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    RENDERED_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    context_limit: int
    rendered: str
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., context_limit: _Optional[int] = ..., rendered: _Optional[str] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("model", "ids")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    model: str
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("id", "architecture", "context_limit", "vocabulary_size", "input_modalities", "output_modalities", "quantisation", "tokenizer_fingerprint", "fingerprint", "chat", "parameter_count", "base_model", "code_format", "aliases", "created_at_seconds", "tenant", "shared")
    ID_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    INPUT_MODALITIES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_MODALITIES_FIELD_NUMBER: _ClassVar[int]
    QUANTISATION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_COUNT_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    CODE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    id: str
    architecture: str
    context_limit: int
    vocabulary_size: int
    input_modalities: _containers.RepeatedScalarFieldContainer[_generate_pb2.Modality]
    output_modalities: _containers.RepeatedScalarFieldContainer[_generate_pb2.Modality]
    quantisation: str
    tokenizer_fingerprint: str
    fingerprint: str
    chat: bool
    parameter_count: int
    base_model: str
    code_format: _audio_pb2.CodeFormat
    aliases: _containers.RepeatedScalarFieldContainer[str]
    created_at_seconds: int
    tenant: str
    shared: bool
    def __init__(self, id: _Optional[str] = ..., architecture: _Optional[str] = ..., context_limit: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., input_modalities: _Optional[_Iterable[_Union[_generate_pb2.Modality, str]]] = ..., output_modalities: _Optional[_Iterable[_Union[_generate_pb2.Modality, str]]] = ..., quantisation: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., fingerprint: _Optional[str] = ..., chat: _Optional[bool] = ..., parameter_count: _Optional[int] = ..., base_model: _Optional[str] = ..., code_format: _Optional[_Union[_audio_pb2.CodeFormat, _Mapping]] = ..., aliases: _Optional[_Iterable[str]] = ..., created_at_seconds: _Optional[int] = ..., tenant: _Optional[str] = ..., shared: _Optional[bool] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("name", "path", "shared")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    shared: bool
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., shared: _Optional[bool] = ...) -> None: ...

class LoadAdapterResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("name", "shared")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    name: str
    shared: bool
    def __init__(self, name: _Optional[str] = ..., shared: _Optional[bool] = ...) -> None: ...

class UnloadAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAdaptersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAdaptersResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...
