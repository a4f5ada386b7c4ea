"""Every field of the official SDK has a class here, and served fields have a wire field."""

from __future__ import annotations

import typing

import msgspec
import pytest
from antiphon_core.errors import InvalidArgument
from antiphon_gateway.openai import (
    audio,
    batches,
    chat,
    completions,
    fields,
    loras,
    ranking,
    responses,
    text,
    voices,
)
from antiphon_gateway.openai.decode import apply_policies
from antiphon_gateway.openapi.endpoint import documented_routes
from openai.types import (
    batch_create_params,
    completion_create_params,
    embedding_create_params,
    file_create_params,
)
from openai.types.audio import (
    speech_create_params,
    transcription_create_params,
    translation_create_params,
    voice_consent_create_params,
    voice_consent_update_params,
    voice_create_params,
)
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

ENDPOINTS = {
    "chat": (
        fields.CHAT,
        chat.ChatRequest,
        chat_create_params.CompletionCreateParamsNonStreaming,
        chat_create_params.CompletionCreateParamsStreaming,
    ),
    "completions": (
        fields.COMPLETION,
        completions.CompletionRequest,
        completion_create_params.CompletionCreateParamsNonStreaming,
        completion_create_params.CompletionCreateParamsStreaming,
    ),
    "responses": (
        fields.RESPONSE,
        responses.ResponseRequest,
        response_create_params.ResponseCreateParamsNonStreaming,
        response_create_params.ResponseCreateParamsStreaming,
    ),
    "embeddings": (
        fields.EMBEDDING,
        text.EmbeddingRequest,
        embedding_create_params.EmbeddingCreateParams,
    ),
    "speech": (fields.SPEECH, audio.SpeechRequest, speech_create_params.SpeechCreateParams),
    "transcriptions": (
        fields.TRANSCRIPTION,
        audio.TranscriptionForm,
        transcription_create_params.TranscriptionCreateParamsNonStreaming,
        transcription_create_params.TranscriptionCreateParamsStreaming,
    ),
    "translations": (
        fields.TRANSLATION,
        audio.TranscriptionForm,
        translation_create_params.TranslationCreateParams,
    ),
    "batches": (
        fields.BATCH,
        batches.BatchRequest,
        batch_create_params.BatchCreateParams,
    ),
    "loras": (fields.LORA, loras.LoraRequest),
    "voices": (
        fields.VOICE,
        voices.VoiceForm,
        voice_create_params.CreateVoiceRequestAudioSample,
        voice_create_params.CreateVoiceRequestPrompt,
    ),
    "voice_consents": (
        fields.CONSENT,
        voices.ConsentForm,
        voice_consent_create_params.VoiceConsentCreateParams,
    ),
    "voice_consent": (
        fields.CONSENT_UPDATE,
        voices.ConsentUpdate,
        voice_consent_update_params.VoiceConsentUpdateParams,
    ),
    "rerank": (fields.RERANK, ranking.RerankRequest),
    "score": (fields.SCORE, ranking.ScoreRequest),
    "tokenize": (fields.TOKENIZE, text.TokenizeRequest),
    "detokenize": (fields.DETOKENIZE, text.DetokenizeRequest),
}

UPLOADED = {"file", "audio_sample", "recording"}
"""Fields that are files, which no wire model has."""


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_sdk_field_has_a_class(endpoint: str) -> None:
    policies, _, *params = ENDPOINTS[endpoint]
    for kind in params:
        names = typing.get_type_hints(kind).keys()
        assert set(names) <= set(policies), endpoint


def test_every_field_of_an_upload_has_a_class() -> None:
    names = typing.get_type_hints(file_create_params.FileCreateParams)
    assert set(names) == set(fields.FILE)


def test_no_documented_endpoint_is_left_out() -> None:
    checked = [policies for policies, *_ in ENDPOINTS.values()]
    for route in documented_routes():
        for operation in getattr(route, "operations", {}).values():
            policies = operation.body.policies if operation.body else None
            assert policies is None or policies is fields.FILE or policies in checked, route.path


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_served_fields_and_wire_fields_are_the_same(endpoint: str) -> None:
    policies, wire, *_ = ENDPOINTS[endpoint]
    served = {n for n, p in policies.items() if p.kind is fields.FieldClass.SERVED} - UPLOADED
    declared = {field.encode_name for field in msgspec.structs.fields(wire)}
    if endpoint == "translations":
        declared &= served
    assert served == declared


def test_refused_fields_are_named_with_what_is_allowed() -> None:
    with pytest.raises(InvalidArgument) as error:
        apply_policies({"store": b"true"}, fields.CHAT, endpoint="chat", strict_fields=False)
    assert (error.value.reason, error.value.field) == ("UNSUPPORTED_OPTION", "store")
    assert error.value.metadata["allowed"] == "false"


@pytest.mark.parametrize("raw", [b"null", b"false"])
def test_harmless_values_of_refused_fields_pass(raw: bytes) -> None:
    given = {"store": raw}
    assert apply_policies(given, fields.CHAT, endpoint="chat", strict_fields=True) == []


def test_unknown_fields_are_named_or_refused() -> None:
    given = {f"x{index}": b"1" for index in range(12)}
    headers = apply_policies(given, fields.CHAT, endpoint="chat", strict_fields=False)
    assert headers == [(b"x-antiphon-ignored", b"x0, x1, x2, x3, x4, x5, x6, x7")]
    with pytest.raises(InvalidArgument, match="x0"):
        apply_policies(given, fields.CHAT, endpoint="chat", strict_fields=True)


def test_names_cannot_break_the_header() -> None:
    headers = apply_policies({"a\r\nb": b"1"}, fields.CHAT, endpoint="chat", strict_fields=False)
    assert headers == [(b"x-antiphon-ignored", b"a??b")]
