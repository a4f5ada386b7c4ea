"""The work on one batch: check, run what has no row yet, write the files."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from antiphon_core import metrics
from antiphon_core.errors import NotFound, Unauthenticated, Unavailable
from antiphon_core.logs import get_logger
from msgspec import Raw, Struct

from antiphon_gateway.batches.calls import Answer, call_self
from antiphon_gateway.batches.settings import BatchSettings
from antiphon_gateway.batches.validation import CheckedInput, Line, check_input
from antiphon_gateway.identity.verifiers import Identity
from antiphon_gateway.middleware.request import App
from antiphon_gateway.store.records import (
    Batch,
    BatchStatus,
    LineError,
    StoredFile,
    new_object_id,
)
from antiphon_gateway.store.storage import Storage

_WAITING_STATUSES = (429, 503)
"""Nothing was begun: the line waits, as long as the batch has time."""
_FAILED_STATUSES = (500, 502, 504)
_ATTEMPTS = 3
"""Of a line whose backend failed."""
_LONGEST_WAIT_SECONDS = 30.0
_STORE_RETRY_SECONDS = 0.5
_EXPIRED_CHUNK = 500

log = get_logger(__name__)

_lines = metrics.counter("batch_lines_total", "Finished lines of batches", ("outcome",))
_waits = metrics.counter("batch_waits_total", "Tries of batch lines that must wait", ("status",))


class _Response(Struct):
    status_code: int
    request_id: str
    body: Raw


class _RowError(Struct):
    code: str
    message: str


class OutputRow(Struct):
    """One line of an output or error file."""

    id: str
    custom_id: str
    response: _Response | None
    error: _RowError | None


class BatchLost(Exception):
    """Another replica works on the batch now."""


class BatchRun:
    """Works on a claimed batch until it is over, lost or the task is cancelled.

    Killed at any point, another run goes on from the rows in the store: a line has at most one.

    Args:
        app: the gateway, for its routes.
        storage: where everything is.
        settings: bounds.
        slots: requests of all batches of this process at a time.
        batch: claimed for ``owner``.
        owner: this process.
        identity: says when the key behind the batch has ended, and the batch with it.
    """

    def __init__(
        self,
        app: App,
        storage: Storage,
        settings: BatchSettings,
        slots: asyncio.Semaphore,
        batch: Batch,
        owner: str,
        identity: Identity,
    ) -> None:
        self._app = app
        self._identity = identity
        self._storage = storage
        self._settings = settings
        self._slots = slots
        self._batch = batch
        self._owner = owner
        self._ending = asyncio.Event()
        """Set when the lines shall not go on: cancelled, or lost."""
        self._is_lost = False
        self._looked = asyncio.Event()

    def look(self) -> None:
        """Reads the batch's status soon, as after a request to cancel it."""
        self._looked.set()

    async def run(self) -> None:
        """See the class."""
        keeper = asyncio.create_task(self._keep())
        try:
            await self._work()
        except BatchLost:
            log.warning("batch_lost", batch=self._batch.id)
        except Unavailable as error:
            # Whoever claims it after the lease goes on where this run ended.
            log.warning("batch_interrupted", batch=self._batch.id, reason=error.reason)
        finally:
            keeper.cancel()

    async def _work(self) -> None:
        batch = self._batch
        checked = await self._check()
        if checked.errors:
            batch.record.errors = checked.errors
            batch.enter(BatchStatus.FAILED)
            await self._finish([])
            return
        batch.total = checked.line_count
        await self._advance(BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
        if not self._ending.is_set():
            await self._run_lines(checked)
        if self._is_lost:
            raise BatchLost
        last = BatchStatus.COMPLETED
        if time.time() >= batch.expires_at and await self._expire(checked):
            last = BatchStatus.EXPIRED
        await self._advance(BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING)
        await self._write_files(BatchStatus.CANCELLED if self._ending.is_set() else last)

    async def _advance(self, former: BatchStatus, status: BatchStatus) -> None:
        found = await self._storage.batches.advance(self._batch, former, status)
        if found is BatchStatus.CANCELLING:
            self._ending.set()

    async def _check(self) -> CheckedInput:
        batch = self._batch
        try:
            file = await self._storage.files.get(batch.tenant, batch.input_file_id)
        except NotFound:
            gone = LineError("input_file_not_found", "the input file is gone or has expired")
            return CheckedInput(errors=[gone])
        self._path = self._storage.store.blobs.path(file.blob)
        return await asyncio.to_thread(
            check_input, self._path, batch.record.endpoint, self._settings
        )

    async def _run_lines(self, checked: CheckedInput) -> None:
        """Runs the lines that have no row, until done, ended or expired."""
        lines = asyncio.create_task(self._all_lines(checked))
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait(
                (lines, ending),
                timeout=max(0.0, self._batch.expires_at - time.time()),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            finished = lines.done()
            for task in (lines, ending):
                task.cancel()
            await asyncio.gather(lines, ending, return_exceptions=True)
        if finished:
            lines.result()

    async def _all_lines(self, checked: CheckedInput) -> None:
        done = await self._storage.batches.done_lines(self._batch.id)
        with _opened(self._path) as descriptor:
            async with asyncio.TaskGroup() as group:
                await self._start_lines(group, descriptor, checked, done)

    async def _start_lines(
        self, group: asyncio.TaskGroup, descriptor: int, checked: CheckedInput, done: set[int]
    ) -> None:
        for number in range(checked.line_count):
            if number in done:
                continue
            await self._slots.acquire()
            task = group.create_task(self._line(number, checked.read(descriptor, number)))
            task.add_done_callback(lambda _: self._slots.release())

    async def _line(self, number: int, text: bytes) -> None:
        batch = self._batch
        line = msgspec.json.decode(text, type=Line)
        request_id = f"{batch.id}-{number + 1}"
        answer = await self._answer(line, request_id)
        failed = answer.status != 200
        row = OutputRow(
            id=_row_id(batch.id, number),
            custom_id=line.custom_id,
            response=_Response(answer.status, request_id, Raw(answer.body)),
            error=None,
        )
        await self._keep_rows([(number, failed, msgspec.json.encode(row) + b"\n")])
        _lines.labels("failed" if failed else "completed").inc()

    async def _answer(self, line: Line, request_id: str) -> Answer:
        """The line's answer; what was refused before it began waits and is tried again."""
        record = self._batch.record
        failures = 0
        while True:
            answer = await call_self(
                self._app, record.endpoint, bytes(line.body), record.principal, request_id
            )
            if answer.headers.get(b"x-should-retry") == b"false":
                return answer
            if answer.status in _FAILED_STATUSES:
                failures += 1
                if failures == _ATTEMPTS:
                    return answer
            elif answer.status not in _WAITING_STATUSES:
                return answer
            _waits.labels(answer.status).inc()
            await asyncio.sleep(_wait_of(answer))

    async def _keep_rows(self, rows: list[tuple[int, bool, bytes]]) -> None:
        """Keeps finished work, however long the store takes to come back."""
        while True:
            try:
                await self._storage.batches.add_rows(self._batch.id, rows)
                return
            except Unavailable:
                await asyncio.sleep(_STORE_RETRY_SECONDS)

    async def _expire(self, checked: CheckedInput) -> bool:
        """Gives every line without a row the error that says so; False when there is none."""
        done = await self._storage.batches.done_lines(self._batch.id)
        left = [number for number in range(checked.line_count) if number not in done]
        error = _RowError("batch_expired", "the batch's time was over before this request ran")
        with _opened(self._path) as descriptor:
            for first in range(0, len(left), _EXPIRED_CHUNK):
                rows = []
                for number in left[first : first + _EXPIRED_CHUNK]:
                    line = msgspec.json.decode(checked.read(descriptor, number), type=Line)
                    row = OutputRow(_row_id(self._batch.id, number), line.custom_id, None, error)
                    rows.append((number, True, msgspec.json.encode(row) + b"\n"))
                await self._keep_rows(rows)
        _lines.labels("expired").inc(len(left))
        return bool(left)

    async def _write_files(self, last: BatchStatus) -> None:
        """Writes both files and ends; repeated from the start after a crash."""
        batch = self._batch
        output = await self._write_file(f"{batch.id}_output.jsonl", failed=False)
        errors = await self._write_file(f"{batch.id}_error.jsonl", failed=True)
        batch.record.output_file_id = output.id if output else None
        batch.record.error_file_id = errors.id if errors else None
        batch.enter(last)
        await self._finish([file for file in (output, errors) if file is not None])

    async def _write_file(self, name: str, *, failed: bool) -> StoredFile | None:
        batch = self._batch
        async with self._storage.store.blobs.writer() as writer:
            async for page in self._storage.batches.rows(batch.id, failed=failed):
                await writer.write(b"".join(page))
            if not writer.size:
                return None
            await writer.commit()
        now = int(time.time())
        lasts = batch.record.output_expires_seconds
        return StoredFile(
            id=new_object_id("file-"),
            tenant=batch.tenant,
            filename=name,
            purpose="batch_output",
            bytes=writer.size,
            created_at=now,
            blob=writer.name,
            expires_at=None if lasts is None else now + lasts,
        )

    async def _finish(self, files: list[StoredFile]) -> None:
        batch = self._batch
        if not await self._storage.batches.finish(batch, self._owner, files):
            raise BatchLost
        log.info("batch_over", batch=batch.id, status=batch.status, lines=batch.total)

    async def _keep(self) -> None:
        """Renews the claim and follows the status, which a request to cancel changes."""
        while not self._ending.is_set():
            try:
                async with asyncio.timeout(self._settings.look_seconds):
                    await self._looked.wait()
                self._looked.clear()
            except TimeoutError:
                pass
            try:
                status = await self._storage.batches.renew(
                    self._batch.id, self._owner, self._settings.lease_seconds
                )
            except Unavailable:
                continue  # nobody else can claim it either while the store is lost
            self._is_lost = status is None
            if status in (None, BatchStatus.CANCELLING) or await self._has_lost_its_key():
                self._ending.set()

    async def _has_lost_its_key(self) -> bool:
        try:
            await self._identity.check_again(self._batch.record.principal)
        except Unauthenticated as error:
            log.warning("batch_without_key", batch=self._batch.id, reason=error.message)
            return True
        except Unavailable:
            pass  # asked again at the next look
        return False


def _row_id(batch_id: str, number: int) -> str:
    """The same however often the line is tried."""
    return "batch_req_" + hashlib.sha256(f"{batch_id}:{number}".encode()).hexdigest()[:32]


def _wait_of(answer: Answer) -> float:
    milliseconds = answer.headers.get(b"retry-after-ms", b"1000")
    return min(_LONGEST_WAIT_SECONDS, max(0.05, int(milliseconds) / 1000))


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
