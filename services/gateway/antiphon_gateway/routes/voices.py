"""/v1/audio/voices: list, make and delete voices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from antiphon_core.errors import InvalidArgument, PermissionDenied

from antiphon_gateway.domain.speech import NewVoice, VoiceConsent
from antiphon_gateway.http import Receive, Scope, Send, body_chunks, header, send_response
from antiphon_gateway.identity.principal import current_principal
from antiphon_gateway.multipart import Form, UploadedFile, read_form
from antiphon_gateway.openai import voices as wire
from antiphon_gateway.openai.audio import AudioVoice
from antiphon_gateway.openai.decode import apply_policies, validation_error
from antiphon_gateway.openai.fields import VOICE, Policies
from antiphon_gateway.routes.catalog import audio_voice, list_voices
from antiphon_gateway.routes.common import gateway_of, strict_fields
from antiphon_gateway.routes.stored import storage_of

if TYPE_CHECKING:
    from antiphon_gateway.store.records import StoredConsent

Fields = TypeVar("Fields")


class Voices:
    """GET lists; POST makes one of a sample and a consent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self._create(scope, receive, send)
        else:
            shown = list_voices(gateway_of(scope).backends)
            await send_response(send, 200, msgspec.json.encode(shown))

    async def _create(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        principal = current_principal()
        if principal.voices is not None:
            raise PermissionDenied(
                "these credentials may use the voices of their list only, so they cannot make one"
            )
        limits = gateway.settings.limits
        upload = await read_form(
            body_chunks(receive), header(scope, b"content-type"), "audio_sample"
        )
        form, headers = checked_form(scope, upload, wire.VoiceForm, VOICE, "voices")
        sample = uploaded(upload, "audio_sample", limits.upload_bytes)
        consent: StoredConsent | None = None
        if form.consent:
            consents = storage_of(scope).consents
            consent = await consents.get(principal.tenant, form.consent, "consent")
        made = await gateway.backends.library.create(
            NewVoice(form.name, _evidence(consent)),
            bytes(sample.data),
            timeout=limits.request_seconds,
        )
        answer: AudioVoice = audio_voice(made, {})
        await send_response(send, 200, msgspec.json.encode(answer), headers=headers)


class Voice:
    """DELETE forgets one of the tenant's voices."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        voice_id = scope["path_params"]["voice"]
        timeout = gateway.settings.limits.request_seconds
        await gateway.backends.library.delete(voice_id, timeout=timeout)
        await send_response(send, 200, msgspec.json.encode(wire.VoiceDeleted(voice_id)))


def checked_form(
    scope: Scope, upload: Form, kind: type[Fields], policies: Policies, endpoint: str
) -> tuple[Fields, list[tuple[bytes, bytes]]]:
    """The form's fields and the header that names unknown ones.

    Raises:
        InvalidArgument: naming the field.
    """
    given = {name: msgspec.json.encode(values[-1]) for name, values in upload.fields.items()}
    strict = strict_fields(gateway_of(scope))
    headers = apply_policies(given, policies, endpoint=endpoint, strict_fields=strict)
    values: dict[str, Any] = {name: values[-1] for name, values in upload.fields.items()}
    try:
        return msgspec.convert(values, kind, strict=False), headers
    except msgspec.ValidationError as error:
        raise validation_error(error, kind) from None


def uploaded(upload: Form, field: str, limit: int) -> UploadedFile:
    """The form's file.

    Raises:
        InvalidArgument: MISSING_FIELD, TOO_LARGE, or INVALID_AUDIO for an empty one.
    """
    file = upload.file
    if file is None:
        raise InvalidArgument(
            f"{field} is required as a form field with a file name",
            reason="MISSING_FIELD",
            field=field,
        )
    if not file.data:
        raise InvalidArgument(f"{field} is empty", reason="INVALID_AUDIO", field=field)
    if len(file.data) > limit:
        raise InvalidArgument(
            f"{field} has {len(file.data)} bytes; at most {limit} are allowed",
            reason="TOO_LARGE",
            field=field,
            metadata={"limit": str(limit), "observed": str(len(file.data))},
        )
    return file


def _evidence(consent: StoredConsent | None) -> VoiceConsent | None:
    if consent is None:
        return None
    return VoiceConsent(
        statement=f"Spoken in the recording {consent.id}, in {consent.language}.",
        speaker=consent.name,
        granted_at=consent.created_at,
        evidence_sha256=bytes.fromhex(consent.sha256),
    )
