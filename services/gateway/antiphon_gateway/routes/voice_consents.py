"""/v1/audio/voice_consents: recordings in which speakers agree to a voice of theirs."""

from __future__ import annotations

import hashlib
import time

import msgspec
from antiphon_core.errors import InvalidArgument

from antiphon_gateway.http import Receive, Scope, Send, body_chunks, header, send_response
from antiphon_gateway.identity.principal import current_principal
from antiphon_gateway.multipart import read_form
from antiphon_gateway.openai import voices as wire
from antiphon_gateway.openai.fields import CONSENT, CONSENT_UPDATE
from antiphon_gateway.routes.common import gateway_of, read_request
from antiphon_gateway.routes.stored import query_of, storage_of
from antiphon_gateway.routes.voices import checked_form, uploaded
from antiphon_gateway.store.records import StoredConsent, new_object_id

_AUDIO_BEGINNINGS = (
    *(b"RIFF", b"ID3", b"OggS", b"fLaC", b"\x1a\x45\xdf\xa3", b"\xff\xfb", b"\xff\xf3"),
    *(b"\xff\xf2", b"\xff\xfa", b"\xff\xf1", b"\xff\xf9"),
)
"""Of wav, mp3 with and without a tag, ogg, flac, webm and aac; mp4 has its mark behind a length."""
_MP4_MARK = b"ftyp"


class VoiceConsents:
    """GET lists; POST keeps a recording."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self._create(scope, receive, send)
        else:
            await self._list(scope, send)

    async def _create(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        storage = storage_of(scope)
        storage.store.require_available()
        upload = await read_form(body_chunks(receive), header(scope, b"content-type"), "recording")
        form, headers = checked_form(scope, upload, wire.ConsentForm, CONSENT, "voice_consents")
        data = bytes(uploaded(upload, "recording", gateway.settings.limits.upload_bytes).data)
        if not (data.startswith(_AUDIO_BEGINNINGS) or data[4:8] == _MP4_MARK):
            raise InvalidArgument(
                "recording is no mp3, wav, ogg, aac, flac, webm or mp4 file",
                reason="INVALID_AUDIO",
                field="recording",
            )
        async with storage.store.blobs.writer() as writer:
            await writer.write(data)
            await writer.commit()
            consent = StoredConsent(
                id=new_object_id("cons_"),
                tenant=current_principal().tenant,
                name=form.name,
                language=form.language,
                created_at=int(time.time()),
                sha256=hashlib.sha256(data).hexdigest(),
                blob=writer.name,
            )
            await storage.consents.add(consent)
        body = msgspec.json.encode(wire.voice_consent(consent))
        await send_response(send, 200, body, headers=headers)

    async def _list(self, scope: Scope, send: Send) -> None:
        query = query_of(scope, wire.ConsentQuery)
        consents, has_more = await storage_of(scope).consents.list(
            current_principal().tenant, after=query.after, limit=query.limit
        )
        shown = wire.VoiceConsentList(
            [wire.voice_consent(consent) for consent in consents],
            first_id=consents[0].id if consents else None,
            last_id=consents[-1].id if consents else None,
            has_more=has_more,
        )
        await send_response(send, 200, msgspec.json.encode(shown))


class VoiceConsent:
    """One consent: GET describes it, POST renames it, DELETE forgets it and its recording.

    Voices that were made with it stay, and keep its digest.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        storage = storage_of(scope)
        tenant, consent_id = current_principal().tenant, scope["path_params"]["consent"]
        headers: list[tuple[bytes, bytes]] = []
        answer: object
        if scope["method"] == "DELETE":
            consent = await storage.consents.delete(tenant, consent_id)
            await storage.store.blobs.delete(consent.blob)
            answer = wire.VoiceConsentDeleted(consent_id)
        elif scope["method"] == "POST":
            update, headers = await read_request(
                scope, receive, wire.ConsentUpdate, CONSENT_UPDATE, "voice_consents"
            )
            renamed = await storage.consents.rename(tenant, consent_id, update.name)
            answer = wire.voice_consent(renamed)
        else:
            answer = wire.voice_consent(await storage.consents.get(tenant, consent_id))
        await send_response(send, 200, msgspec.json.encode(answer), headers=headers)
