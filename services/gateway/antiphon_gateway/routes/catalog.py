"""GET /v1/models and /v1/models/{id}; what GET /v1/audio/voices shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon_gateway.clients import Backends
from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.domain.recognition import Recognizer
from antiphon_gateway.domain.speech import Voice
from antiphon_gateway.http import Receive, Scope, Send, send_response
from antiphon_gateway.names import model_not_found, resolve_model, speech_models
from antiphon_gateway.openai.audio import AudioVoice, VoiceList
from antiphon_gateway.routes.common import gateway_of, now

_STARTED_AT = now()


class Model(Struct):
    """A model as the list shows it."""

    id: str
    created: int
    capabilities: list[str]
    owned_by: str = "antiphon"
    object: Literal["model"] = "model"
    max_context: int | UnsetType = UNSET
    modalities: dict[str, list[str]] | UnsetType = UNSET
    parent: str | None = None
    """Base of an adapter, or the model that an alias stands for."""


class ModelList(Struct):
    """GET /v1/models."""

    data: list[Model]
    object: Literal["list"] = "list"


class ListModels:
    """Everything that a ``model`` field may name."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        models = all_models(gateway_of(scope).backends)
        await send_response(send, 200, msgspec.json.encode(ModelList(models)))


class RetrieveModel:
    """One of them; ids may contain slashes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        backends = gateway_of(scope).backends
        model = find_model(scope["path_params"]["model"], backends)
        await send_response(send, 200, msgspec.json.encode(model))


def list_voices(backends: Backends) -> VoiceList:
    """Voices that a ``voice`` field may name.

    Raises:
        Unavailable: no vocoder service is ready.
    """
    backends.vocoder.pool.require_ready()
    configured = backends.vocoder.voice_aliases
    return VoiceList([audio_voice(voice, configured) for voice in backends.voices])


def audio_voice(voice: Voice, configured: Mapping[str, str]) -> AudioVoice:
    """The wire form of a voice.

    Args:
        voice: as a service describes it.
        configured: the gateway's own names of voices.
    """
    return AudioVoice(
        id=voice.id,
        created_at=voice.created_at or _STARTED_AT,
        name=voice.name,
        type="audio_sample" if voice.is_made else voice.kind,
        language=voice.language,
        is_default=voice.is_default,
        aliases=_voice_aliases(voice, configured),
    )


def _voice_aliases(voice: Voice, configured: Mapping[str, str]) -> list[str]:
    """Names that mean the voice: its own, and the gateway's; each once."""
    names = dict.fromkeys(voice.aliases)
    for alias, target in configured.items():
        if target == voice.id or (not target and voice.is_default):
            names[alias] = None
    return list(names)


def all_models(backends: Backends) -> list[Model]:
    """Language models, speech models and recognisers with their aliases, each id once.

    Raises:
        Unavailable: no backend of any kind is ready.
    """
    pools = (backends.llm.pool, backends.vocoder.pool, backends.recognition.pool)
    if not any(pool.is_ready for pool in pools):
        backends.llm.pool.require_ready()
    found: dict[str, Model] = {}
    for model in backends.models:
        found.setdefault(model.id, _language_model(model))
        for alias in model.aliases:
            found.setdefault(alias, _language_model(model, alias))
    speech = speech_models(backends.voices)
    _add_audio(
        found,
        {name: ["speech"] for name in speech},
        backends.vocoder.model_aliases if speech else {},
    )
    recognizers = backends.recognizers
    aliases = {alias: item.id for item in recognizers for alias in item.aliases}
    if recognizers:
        aliases.update(backends.recognition.model_aliases)
    _add_audio(found, {item.id: _heard(item) for item in recognizers}, aliases)
    return list(found.values())


def find_model(name: str, backends: Backends) -> Model:
    """The model of a name, by the same rules as in requests.

    Raises:
        NotFound: MODEL_NOT_FOUND.
        Unavailable: no backend of any kind is ready.
    """
    listed = {model.id: model for model in all_models(backends)}
    if name in listed:
        return listed[name]
    if not backends.models:
        raise model_not_found(name, list(listed))
    return _language_model(resolve_model(name, backends.models))


def _language_model(model: ModelInfo, alias: str = "") -> Model:
    capabilities = ["completion", "chat"] if model.chat else ["completion"]
    if model.code_format is not None:
        capabilities.append("speech")
    return Model(
        id=alias or model.id,
        created=model.created_at or _STARTED_AT,
        capabilities=capabilities,
        max_context=model.context_limit,
        modalities={
            "input": [str(item) for item in model.input_modalities],
            "output": [str(item) for item in model.output_modalities],
        },
        parent=model.id if alias else model.base_model or None,
    )


def _heard(recognizer: Recognizer) -> list[str]:
    return ["transcription", "diarization"] if recognizer.diarizes else ["transcription"]


def _add_audio(
    found: dict[str, Model], served: Mapping[str, list[str]], aliases: Mapping[str, str]
) -> None:
    """Adds what is served, by id with its capabilities, and further names of it."""
    for name, capabilities in served.items():
        found.setdefault(name, Model(name, _STARTED_AT, capabilities))
    for alias, target in aliases.items():
        parent = target or next(iter(served))
        capabilities = served.get(parent) or next(iter(served.values()))
        found.setdefault(alias, Model(alias, _STARTED_AT, capabilities, parent=parent))
