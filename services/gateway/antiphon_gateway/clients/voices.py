"""Voices that tenants make: on a vocoder service that keeps them, known to all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon_core.errors import AntiphonError, FailedPrecondition, InvalidArgument, NotFound
from antiphon_core.logs import get_logger

from antiphon_gateway.domain.speech import NewVoice, Voice
from antiphon_gateway.identity.principal import current_principal
from antiphon_gateway.names import visible_voices

if TYPE_CHECKING:
    from antiphon_gateway.clients.pool import Member, Pool
    from antiphon_gateway.clients.speech import SpeechClient

log = get_logger(__name__)


class VoiceLibrary:
    """What the current principal may make and delete.

    Args:
        pool: of the vocoder services.
    """

    def __init__(self, pool: Pool[SpeechClient, Voice]) -> None:
        self._pool = pool

    async def create(self, voice: NewVoice, sample: bytes, *, timeout: float) -> Voice:
        """Makes a voice on the first ready service that keeps voices.

        Args:
            voice: what is known of it.
            sample: the recording's file.
            timeout: seconds for each service.

        Raises:
            AntiphonError: the sample or the consent is refused, or no service keeps voices.
        """
        self._pool.require_ready()
        refusal: FailedPrecondition | None = None
        for member in [m for m in self._pool.members if m.monitor.is_ready]:
            try:
                made = await member.client.create_voice(voice, sample, timeout)
            except FailedPrecondition as error:
                if error.reason != "WRONG_STATE":
                    raise
                refusal = error  # this one is not set up to keep voices
                continue
            await _refresh([member])
            return made
        assert refusal is not None
        raise refusal

    async def delete(self, voice_id: str, *, timeout: float) -> None:
        """Deletes a voice wherever it is known: of the principal's tenant, or of any for a
        principal of the scope ``admin``.

        Raises:
            NotFound: there is no such voice for the principal.
            InvalidArgument: UNSUPPORTED_OPTION, it is a preset.
        """
        self._pool.require_ready()
        principal = current_principal()
        is_admin = "admin" in principal.scopes
        voices = self._pool.served if is_admin else visible_voices(self._pool.served, principal)
        found = next((voice for voice in voices if voice.id == voice_id), None)
        if found is None:
            raise _not_found(voice_id)
        if not found.is_made:
            raise InvalidArgument(
                f"voice_id: {voice_id!r} is a preset, which cannot be deleted",
                reason="UNSUPPORTED_OPTION",
                field="voice_id",
            )
        members = [m for m in self._pool.members if any(v.id == voice_id for v in m.served)]
        deleted = 0
        try:
            for member in members:
                try:
                    await member.client.delete_voice(voice_id, timeout, anybodys=is_admin)
                    deleted += 1
                except NotFound:
                    continue  # gone with the first, where services share a store
        finally:
            await _refresh(members)
        if not deleted:
            raise _not_found(voice_id)


async def _refresh(members: list[Member[SpeechClient, Voice]]) -> None:
    """The next request must see the change, which the catalogue brings seconds later."""
    for member in members:
        try:
            member.served = await member.client.list_voices()
        except AntiphonError as error:
            log.warning("catalogue_not_refreshed", error=error.message)


def _not_found(voice_id: str) -> NotFound:
    return NotFound(f"voice_id: no voice {voice_id[:64]!r}", field="voice_id")
