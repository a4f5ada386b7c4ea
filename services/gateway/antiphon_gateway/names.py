"""One resolver for model and voice names: exact or refused, never another model."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from antiphon_core.errors import InvalidArgument, NotFound

from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.domain.recognition import Recognizer
from antiphon_gateway.domain.speech import Voice
from antiphon_gateway.identity.principal import Principal, current_principal

_LISTED = 20


def resolve_model(name: str, models: Sequence[ModelInfo], default: str = "") -> ModelInfo:
    """The served model that a request means.

    In order: exact id or alias, a model's before an adapter's; ``base:adapter``, the base by any
    of its names; an empty name or ``default``; a basename (``org/name`` by ``name``) that only
    one model has.

    Raises:
        NotFound: MODEL_NOT_FOUND, listing what is served.
    """
    if name in ("", "default"):
        name = default or (models[0].id if models else "")
    for model in sorted(models, key=lambda model: model.base_model != ""):
        if name == model.id or name in model.aliases:
            return model
    base, _, adapter = name.rpartition(":")
    for model in models:
        if base and model.base_model and model.id == adapter:
            names = (
                alias
                for item in models
                if item.id == model.base_model and not item.base_model
                for alias in item.aliases
            )
            if base in (model.base_model, "default", *names):
                return model
    same_basename = [model for model in models if model.id.rpartition("/")[2] == name]
    if len(same_basename) == 1:
        return same_basename[0]
    raise model_not_found(name, [model.id for model in models])


def visible_models(models: Sequence[ModelInfo], principal: Principal) -> Sequence[ModelInfo]:
    """Those models that a principal may use: not the adapters of other tenants, nor one for
    everybody where the tenant has its own of that name, nor what its allow-list leaves out."""
    own = {model.id for model in models if model.base_model and not model.shared
           and model.tenant == principal.tenant}  # fmt: skip
    seen = [
        model
        for model in models
        if model.visible_to(principal.tenant) and not (model.shared and model.id in own)
    ]
    return allowed_models(seen, principal.models)


def served_key(item: ModelInfo | Voice | Recognizer) -> Hashable:
    """What tells one that is served from another."""
    return item.key if isinstance(item, ModelInfo) else item.id


def may_use(item: ModelInfo | Voice | Recognizer) -> bool:
    """Whether the current principal's tenant may; recognisers are everybody's."""
    return isinstance(item, Recognizer) or item.visible_to(current_principal().tenant)


def allowed_models(models: Sequence[ModelInfo], names: Sequence[str] | None) -> Sequence[ModelInfo]:
    """Those models that an allow-list names by id, alias or base; all without a list."""
    if names is None:
        return models
    listed = set(names)
    return [m for m in models if not listed.isdisjoint((m.id, m.base_model, *m.aliases))]


def visible_voices(voices: Sequence[Voice], principal: Principal) -> Sequence[Voice]:
    """Those voices that a principal may use: not those of other tenants, nor what its allow-list
    leaves out."""
    seen = [voice for voice in voices if voice.visible_to(principal.tenant)]
    return allowed_voices(seen, principal.voices)


def allowed_voices(voices: Sequence[Voice], names: Sequence[str] | None) -> Sequence[Voice]:
    """Those voices that an allow-list names by id or alias; all without a list."""
    if names is None:
        return voices
    return [voice for voice in voices if not set(names).isdisjoint((voice.id, *voice.aliases))]


def resolve_voice(name: str, voices: Sequence[Voice], aliases: Mapping[str, str]) -> str:
    """The id of the voice that a request means; empty is the default voice.

    Raises:
        InvalidArgument: VOICE_NOT_FOUND, listing the voices.
    """
    for voice in voices:
        if name == voice.id or name in voice.aliases:
            return voice.id
    if name in aliases:
        return aliases[name]
    known = [voice.id for voice in voices] + sorted(aliases)
    raise InvalidArgument(
        f"voice {name!r} is not served; available: {_listing(known)}",
        reason="VOICE_NOT_FOUND",
        field="voice",
        allowed=known[:_LISTED],
    )


def resolve_listed_voice(name: str, voices: Sequence[Voice], aliases: Mapping[str, str]) -> str:
    """As ``resolve_voice`` where only some voices may be used; never empty.

    Args:
        name: as asked for; empty, or an alias of the default voice, takes the default voice if it
            is among them, else the first of them.
        voices: those that may be used.
        aliases: of all voices.

    Raises:
        InvalidArgument: VOICE_NOT_FOUND, listing the voices.
    """
    if not any(name == voice.id or name in voice.aliases for voice in voices):
        name = aliases.get(name, name)
    if not name and voices:
        return next((voice.id for voice in voices if voice.is_default), voices[0].id)
    return resolve_voice(name, voices, {})


def resolve_speech_model(name: str, voices: Sequence[Voice], aliases: Mapping[str, str]) -> str:
    """The id of the speech model; empty leaves the choice to the voice.

    Raises:
        NotFound: MODEL_NOT_FOUND, listing what is served.
    """
    served = speech_models(voices)
    if name in ("", "default"):
        return ""
    if name in served:
        return name
    if name in aliases:
        return aliases[name]
    raise model_not_found(name, [*served, *sorted(aliases)])


def resolve_recognizer(
    name: str, recognizers: Sequence[Recognizer], aliases: Mapping[str, str]
) -> str:
    """The id of the recogniser; empty is the default one.

    Raises:
        NotFound: MODEL_NOT_FOUND, listing what is served.
    """
    if name in ("", "default"):
        return ""
    for recognizer in recognizers:
        if name == recognizer.id or name in recognizer.aliases:
            return recognizer.id
    if name in aliases:
        return aliases[name]
    raise model_not_found(name, [*(item.id for item in recognizers), *sorted(aliases)])


def speech_models(voices: Sequence[Voice]) -> list[str]:
    """Ids of the speech models that the presets work with, without repeats; what tenants make
    names the codecs that know it."""
    presets = (voice for voice in voices if not voice.is_made)
    return list(dict.fromkeys(model for voice in presets for model in voice.models))


def model_not_found(name: str, served: Sequence[str]) -> NotFound:
    """MODEL_NOT_FOUND that lists what is served."""
    return NotFound(
        f"model {name!r} is not served; available: {_listing(served)}",
        reason="MODEL_NOT_FOUND",
        field="model",
        allowed=list(served)[:_LISTED],
    )


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_LISTED])
    rest = len(names) - _LISTED
    return (shown or "none") + (f" and {rest} more" if rest > 0 else "")
