"""Wire models of /v1/audio/voices and /v1/audio/voice_consents."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon_gateway.store.records import StoredConsent

_PAGE = 20
_LONGEST_PAGE = 100

Name = Annotated[str, Meta(min_length=1, max_length=128)]
# Python's $ also matches before a last line break, that of JSON schemas does not.
Language = Annotated[str, Meta(min_length=2, max_length=35, pattern=r"^[A-Za-z0-9-]+$(?!\n)")]


class VoiceForm(Struct):
    """Fields of POST /v1/audio/voices beside the sample."""

    name: Name
    consent: str = ""
    """Id of a consent; a deployment may do without."""
    type: Literal["audio_sample"] = "audio_sample"


class VoiceDeleted(Struct):
    """DELETE /v1/audio/voices/{voice}."""

    id: str
    deleted: bool = True
    object: Literal["audio.voice.deleted"] = "audio.voice.deleted"


class ConsentForm(Struct):
    """Fields of POST /v1/audio/voice_consents beside the recording."""

    name: Name
    language: Language


class ConsentUpdate(Struct):
    """POST /v1/audio/voice_consents/{consent}."""

    name: Name


class ConsentQuery(Struct):
    """Which consents GET /v1/audio/voice_consents lists."""

    after: Annotated[str, Meta(pattern="^cons_[A-Za-z0-9_-]{1,59}$")] = ""
    limit: Annotated[int, Meta(ge=1, le=_LONGEST_PAGE)] = _PAGE


class VoiceConsent(Struct):
    """A consent as clients see it."""

    id: str
    created_at: int
    language: str
    name: str
    object: Literal["audio.voice_consent"] = "audio.voice_consent"


class VoiceConsentList(Struct):
    """GET /v1/audio/voice_consents, the newest first."""

    data: list[VoiceConsent]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class VoiceConsentDeleted(Struct):
    """DELETE /v1/audio/voice_consents/{consent}."""

    id: str
    deleted: bool = True
    object: Literal["audio.voice_consent"] = "audio.voice_consent"


def voice_consent(consent: StoredConsent) -> VoiceConsent:
    """The wire form of a stored consent."""
    return VoiceConsent(consent.id, consent.created_at, consent.language, consent.name)
