"""The audio routes: each endpoint, and what the OpenAPI document says of it."""

from __future__ import annotations

from dataclasses import replace

from antiphon_gateway.openai import audio, fields, voices
from antiphon_gateway.openapi.operation import (
    CALL,
    OBJECT,
    Endpoint,
    FormBody,
    JsonBody,
    Operation,
)
from antiphon_gateway.routes.speech import MIME_TYPES, Speech
from antiphon_gateway.routes.transcriptions import Transcriptions
from antiphon_gateway.routes.voice_consents import VoiceConsent, VoiceConsents
from antiphon_gateway.routes.voices import Voice, Voices

_TRANSCRIPT = Operation(
    "createTranscription",
    "Writes down what a recording says.",
    FormBody(audio.TranscriptionForm, fields.TRANSCRIPTION),
    answer=(audio.Transcription, audio.VerboseTranscription, audio.DiarizedTranscription),
    events=(audio.TranscriptDelta, audio.DiarizedSegment, audio.TranscriptDone),
    contents=("text/plain", "application/x-subrip", "text/vtt"),
    errors=CALL,
)


def audio_routes() -> list[Endpoint]:
    """Every route under /v1/audio, the busiest first."""
    return [
        Endpoint(
            "/v1/audio/speech",
            Speech(),
            post=Operation(
                "createSpeech",
                "Speaks a text.",
                JsonBody(audio.SpeechRequest, fields.SPEECH),
                events=(audio.SpeechDelta, audio.SpeechDone),
                contents=tuple(MIME_TYPES.values()),
                errors=CALL,
            ),
        ),
        Endpoint("/v1/audio/transcriptions", Transcriptions(translate=False), post=_TRANSCRIPT),
        Endpoint(
            "/v1/audio/translations",
            Transcriptions(translate=True),
            post=replace(
                _TRANSCRIPT,
                name="createTranslation",
                summary="Writes down in English what a recording says.",
                body=FormBody(audio.TranscriptionForm, fields.TRANSLATION),
                answer=(audio.Transcription, audio.VerboseTranscription),
                events=(),
            ),
        ),
        Endpoint(
            "/v1/audio/voices",
            Voices(),
            get=Operation("listVoices", "Lists the voices.", answer=(audio.VoiceList,)),
            post=Operation(
                "createVoice",
                "Makes a voice of a sample and its speaker's consent.",
                FormBody(voices.VoiceForm, fields.VOICE, "audio_sample"),
                answer=(audio.AudioVoice,),
                errors=(*CALL, 409),
            ),
        ),
        Endpoint(
            "/v1/audio/voices/{voice}",
            Voice(),
            delete=Operation(
                "deleteVoice", "Forgets a voice.", answer=(voices.VoiceDeleted,), errors=CALL
            ),
        ),
        *_voice_consents(),
    ]


def _voice_consents() -> list[Endpoint]:
    return [
        Endpoint(
            "/v1/audio/voice_consents",
            VoiceConsents(),
            get=Operation(
                "listVoiceConsents",
                "Lists the recorded consents.",
                query=voices.ConsentQuery,
                answer=(voices.VoiceConsentList,),
            ),
            post=Operation(
                "createVoiceConsent",
                "Keeps a recording in which a speaker agrees to a voice.",
                FormBody(voices.ConsentForm, fields.CONSENT, "recording"),
                answer=(voices.VoiceConsent,),
            ),
        ),
        Endpoint(
            "/v1/audio/voice_consents/{consent}",
            VoiceConsent(),
            get=Operation(
                "retrieveVoiceConsent",
                "Describes a consent.",
                answer=(voices.VoiceConsent,),
                errors=OBJECT,
            ),
            post=Operation(
                "updateVoiceConsent",
                "Renames a consent.",
                JsonBody(voices.ConsentUpdate, fields.CONSENT_UPDATE),
                answer=(voices.VoiceConsent,),
                errors=OBJECT,
            ),
            delete=Operation(
                "deleteVoiceConsent",
                "Forgets a consent and its recording.",
                answer=(voices.VoiceConsentDeleted,),
                errors=OBJECT,
            ),
        ),
    ]
