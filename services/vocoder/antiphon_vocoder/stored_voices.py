"""The voices that tenants made, as calls see them: whose they are and which streams speak so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from antiphon_core.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from antiphon_core.logs import get_logger

from antiphon_vocoder.voice_store.manifest import Manifest
from antiphon_vocoder.voice_store.store import VoiceStore
from antiphon_vocoder.voices import near_names

REFRESH_SECONDS = 2.0
"""After so long every process knows what another one made or deleted."""

log = get_logger("vocoder.stored_voices")


class StoredVoices:
    """Follows one voice store; used on one event loop, ``start`` before use and ``stop`` after.

    Args:
        directory: of the store; None keeps no voices.
        limit: voices that one tenant may have.
    """

    def __init__(self, directory: Path | None, limit: int) -> None:
        self._directory = directory
        self._limit = limit
        self._store: VoiceStore | None = None
        self._voices: dict[str, Manifest] = {}
        self._speaking: dict[str, set[Callable[[], None]]] = {}
        self._changing = asyncio.Lock()
        """A listing that began before a change must not undo it."""
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Opens the store and reads it once.

        Raises:
            FailedPrecondition: it cannot be opened.
        """
        if self._directory is None:
            return
        self._store = await asyncio.to_thread(VoiceStore, self._directory)
        await self.refresh()
        self._follower = asyncio.create_task(self._follow(), name="stored-voices")

    async def stop(self) -> None:
        """Closes the store."""
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower
            self._follower = None
        async with self._changing:
            if self._store is not None:
                self._store.close()
                self._store = None

    @property
    def damaged(self) -> Mapping[str, str]:
        """Directories of the store that hold no whole voice, and why."""
        return self._store.damaged if self._store is not None else {}

    def visible(self, tenant: str | None) -> list[Manifest]:
        """The voices of a tenant, the oldest first; of all tenants for None."""
        found = [v for v in self._voices.values() if tenant is None or v.owner == tenant]
        return sorted(found, key=lambda voice: (voice.created_at, voice.id))

    def find(self, voice_id: str, tenant: str | None) -> Manifest | None:
        """The voice of an id, if it is the tenant's; anybody's for None."""
        voice = self._voices.get(voice_id)
        return voice if voice is not None and tenant in (None, voice.owner) else None

    def require_room(self, tenant: str) -> VoiceStore:
        """The store, before work is put into another voice.

        Raises:
            FailedPrecondition: naming the setting ``voice_store_dir``, which is empty.
            ResourceExhausted: QUOTA_SPENT, the tenant has as many voices as it may.
        """
        if self._store is None:
            raise FailedPrecondition(
                "this service keeps no voices: the setting [vocoder] voice_store_dir names no"
                " directory",
                field="voice_store_dir",
            )
        count = len(self.visible(tenant))
        if count >= self._limit:
            raise ResourceExhausted(
                f"there are {count} voices already; delete some first",
                reason="QUOTA_SPENT",
                metadata={"limit": str(self._limit), "observed": str(count)},
            )
        return self._store

    async def add(self, manifest: Manifest, *, sample: bytes, conditioning: bytes) -> Manifest:
        """Keeps a voice; raises as ``require_room`` and ``VoiceStore.add``."""
        async with self._changing:
            store = self.require_room(manifest.owner)
            added = await asyncio.to_thread(
                store.add, manifest, sample=sample, conditioning=conditioning
            )
            self._voices[added.id] = added
        log.info("voice_created", voice=added.id, tenant=added.owner, models=added.models)
        return added

    async def delete(self, voice_id: str, tenant: str | None, *, drain: bool) -> None:
        """Makes a voice unusable at once, then forgets it.

        Args:
            voice_id: of a voice of the tenant.
            tenant: whose it must be; None for administration, which may delete anybody's.
            drain: let running streams of it end by themselves.

        Raises:
            NotFound: VOICE_NOT_FOUND, listing the tenant's voices of near names.
        """
        async with self._changing:
            voice = self.find(voice_id, tenant)
            if voice is None or self._store is None:
                raise _voice_not_found(voice_id, [voice.id for voice in self.visible(tenant)])
            del self._voices[voice_id]
            try:
                await asyncio.to_thread(self._store.delete, voice_id)
            except NotFound:
                log.info("voice_deleted_elsewhere", voice=voice_id)
            except OSError:
                self._voices[voice_id] = voice
                raise
            if not drain:
                self._end_streams(voice_id)
        log.info("voice_deleted", voice=voice_id, tenant=voice.owner)

    @contextmanager
    def speaking(self, voice: Manifest | None, on_deleted: Callable[[], None]) -> Iterator[None]:
        """Inside the block ``on_deleted`` is called when the voice is deleted, or at once where it
        was while the stream waited; never for None."""
        if voice is None:
            yield
            return
        if voice.id not in self._voices:
            on_deleted()
        listeners = self._speaking.setdefault(voice.id, set())
        listeners.add(on_deleted)
        try:
            yield
        finally:
            listeners.discard(on_deleted)
            if not listeners:
                self._speaking.pop(voice.id, None)

    async def refresh(self) -> None:
        """Reads the store again; streams of voices that another process deleted are ended."""
        async with self._changing:
            if self._store is None:
                return
            manifests = await asyncio.to_thread(self._store.manifests)
            gone = self._voices.keys() - {voice.id for voice in manifests}
            self._voices = {voice.id: voice for voice in manifests}
            for voice_id in gone:
                self._end_streams(voice_id)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self.refresh()
            except OSError as error:
                log.error("voice_store_unreadable", error=str(error))

    def _end_streams(self, voice_id: str) -> None:
        for end in tuple(self._speaking.get(voice_id, ())):
            end()


def text_refused(voice: Manifest) -> InvalidArgument:
    """Why a voice that speaks codes does not read text."""
    return InvalidArgument(
        f"the voice {voice.id} speaks codes of {', '.join(voice.models)}; no model that reads text"
        " takes a sample",
        reason="UNSUPPORTED_OPTION",
        field="config.voice",
    )


def _voice_not_found(voice_id: str, known: list[str]) -> NotFound:
    return NotFound(
        f"there is no voice {voice_id[:64]!r}",
        reason="VOICE_NOT_FOUND",
        field="id",
        allowed=near_names(voice_id, known),
    )
