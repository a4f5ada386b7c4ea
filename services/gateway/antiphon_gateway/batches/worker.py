"""Finds batches that nobody works on, and tidies the store."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress

from antiphon_core.errors import Unavailable
from antiphon_core.lifecycle import Lifecycle, State
from antiphon_core.logs import get_logger

from antiphon_gateway.batches.run import BatchRun
from antiphon_gateway.batches.settings import BatchSettings
from antiphon_gateway.identity.verifiers import Identity
from antiphon_gateway.middleware.request import App
from antiphon_gateway.store.storage import Storage

TIDY_SECONDS = 600.0
ORPHAN_SECONDS = 3600.0
"""A younger content without a row may be about to get it."""

log = get_logger(__name__)


class BatchWorker:
    """Works on batches while the process serves.

    Args:
        app: the gateway, for its routes.
        storage: where batches are.
        settings: bounds.
        lifecycle: a draining process begins nothing.
        identity: ends batches whose key has ended.
    """

    def __init__(
        self,
        app: App,
        storage: Storage,
        settings: BatchSettings,
        lifecycle: Lifecycle,
        identity: Identity,
    ) -> None:
        self._app = app
        self._identity = identity
        self._storage = storage
        self._settings = settings
        self._lifecycle = lifecycle
        self._owner = uuid.uuid4().hex
        self._slots = asyncio.Semaphore(settings.max_in_flight)
        self._runs: dict[str, BatchRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._woken = asyncio.Event()

    def start(self) -> None:
        """Begins to look for work."""
        self._tasks.add(asyncio.create_task(self._find(), name="batches"))
        self._tasks.add(asyncio.create_task(self._tidy(), name="store-tidy"))

    async def close(self) -> None:
        """Stops; lines that run are cancelled, and another replica may go on at once."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(Unavailable):
            await self._storage.batches.release(self._owner)

    def wake(self, batch_id: str = "") -> None:
        """There is a new batch, or the given one was cancelled."""
        if batch_id in self._runs:
            self._runs[batch_id].look()
        self._woken.set()

    async def _find(self) -> None:
        while True:
            room = self._settings.max_running - len(self._runs)
            is_serving = self._lifecycle.state not in (State.DRAINING, State.STOPPED)
            if room > 0 and is_serving and self._storage.store.is_available:
                with suppress(Unavailable):
                    await self._claim(room)
            try:
                async with asyncio.timeout(self._settings.poll_seconds):
                    await self._woken.wait()
                self._woken.clear()
            except TimeoutError:
                pass

    async def _claim(self, room: int) -> None:
        settings = self._settings
        for batch in await self._storage.batches.claim(self._owner, settings.lease_seconds, room):
            if batch.id in self._runs:
                continue  # its lease lapsed while the store was lost; the run is still at it
            run = BatchRun(
                self._app,
                self._storage,
                settings,
                self._slots,
                batch,
                self._owner,
                self._identity,
            )
            self._runs[batch.id] = run
            task = asyncio.create_task(self._work(batch.id, run), name=f"batch-{batch.id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, batch_id: str, run: BatchRun) -> None:
        try:
            await run.run()
        except Exception:
            # A defect in one batch must not end the others; the lease makes it be tried again.
            log.exception("batch_failed", batch=batch_id)
        finally:
            del self._runs[batch_id]
            self._woken.set()

    async def _tidy(self) -> None:
        """Removes expired files and responses, and what crashes have left."""
        blobs = self._storage.store.blobs
        while True:
            with suppress(Unavailable, OSError):
                while expired := await self._storage.files.take_expired():
                    for name in expired:
                        await blobs.delete(name)
                while await self._storage.responses.delete_expired():
                    pass
                known = await self._storage.files.blobs()
                known += await self._storage.consents.blobs()
                for path in await asyncio.to_thread(blobs.orphans, known, ORPHAN_SECONDS):
                    path.unlink(missing_ok=True)
                    log.info("orphan_removed", blob=path.name)
            await asyncio.sleep(
                TIDY_SECONDS if self._storage.store.is_available else self._settings.poll_seconds
            )
