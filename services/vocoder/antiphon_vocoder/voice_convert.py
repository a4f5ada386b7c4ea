"""Between the wire's messages about stored voices and this service's plain values."""

from __future__ import annotations

from antiphon.common.v1 import audio_pb2
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon_core.errors import InvalidArgument

from antiphon_vocoder.convert import known_encoding
from antiphon_vocoder.voice_creation import VoiceRequest
from antiphon_vocoder.voice_store.manifest import Consent, Manifest

_KINDS = {"uploaded": pb.VOICE_KIND_UPLOADED, "cloned": pb.VOICE_KIND_CLONED}
_DIGEST_BYTES = 32
_LONGEST_TEXT = 4096


def voice_request(config: pb.CreateVoiceConfig) -> VoiceRequest:
    """A new voice.

    Raises:
        InvalidArgument: an encoding that this build does not know, or half a consent.
    """
    sniffed = config.format.encoding == audio_pb2.AUDIO_ENCODING_UNSPECIFIED
    return VoiceRequest(
        display_name=config.display_name,
        encoding=None if sniffed else known_encoding(config.format, "config.format"),
        sample_rate=config.format.sample_rate_hz,
        transcript=config.transcript,
        language=config.language,
        consent=_consent(config.consent) if config.HasField("consent") else None,
    )


def _consent(message: pb.VoiceConsent) -> Consent:
    for name in ("statement", "speaker"):
        length = len(getattr(message, name))
        if not getattr(message, name).strip() or length > _LONGEST_TEXT:
            raise InvalidArgument(
                f"config.consent.{name} must have 1 to {_LONGEST_TEXT} characters",
                field=f"config.consent.{name}",
                metadata={"limit": f"1..{_LONGEST_TEXT}", "observed": str(length)},
            )
    if not message.HasField("granted_at"):
        raise InvalidArgument(
            "config.consent.granted_at is required",
            reason="MISSING_FIELD",
            field="config.consent.granted_at",
        )
    if len(message.evidence_sha256) not in (0, _DIGEST_BYTES):
        raise InvalidArgument(
            f"config.consent.evidence_sha256 must have {_DIGEST_BYTES} bytes, or none",
            field="config.consent.evidence_sha256",
        )
    return Consent(
        statement=message.statement,
        speaker=message.speaker,
        granted_at=message.granted_at.seconds + message.granted_at.nanos / 1e9,
        evidence_sha256=message.evidence_sha256.hex(),
    )


def stored_voice_message(voice: Manifest, sample_rate: int) -> pb.Voice:
    """A voice that a tenant made.

    Args:
        sample_rate: of its first model that is served; 0 where none is.
    """
    message = pb.Voice(
        id=voice.id,
        display_name=voice.display_name,
        kind=_KINDS[voice.kind],
        models=voice.models,
        language=voice.language,
        sample_rate_hz=sample_rate,
        tenant=voice.owner,
    )
    message.created_at.FromNanoseconds(round(voice.created_at * 1e9))
    return message
