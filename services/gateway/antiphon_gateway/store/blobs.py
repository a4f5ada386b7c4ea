"""File contents in a folder: written aside, flushed to the disk, then renamed into place."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

from antiphon_core.errors import Unavailable

_READ_BYTES = 256 * 1024


class BlobWriter:
    """A blob being written; ``commit`` makes it last."""

    def __init__(self, stream: BinaryIO, temporary: Path, final: Path) -> None:
        self._stream = stream
        self._temporary = temporary
        self._final = final
        self.name = final.name
        self.size = 0
        self.is_committed = False

    async def write(self, data: bytes) -> None:
        """Appends off the event loop.

        Raises:
            Unavailable: STORE_UNAVAILABLE, the disk refuses.
        """
        self.size += len(data)
        with _disk_errors():
            await asyncio.to_thread(self._stream.write, data)

    async def commit(self) -> None:
        """Flushes to the disk and gives the blob its name; raises as ``write``."""
        with _disk_errors():
            await asyncio.to_thread(self._commit)
        self.is_committed = True

    def _commit(self) -> None:
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        self._final.parent.mkdir(exist_ok=True)
        os.replace(self._temporary, self._final)
        _flush_folder(self._final.parent)


class BlobFolder:
    """Blobs by name, two hex digits a subfolder.

    Args:
        root: made by ``prepare``.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._aside = root / "incoming"
        self._owner = root / "database"

    def prepare(self) -> None:
        """Makes the folders.

        Raises:
            OSError: they cannot be made.
        """
        self._aside.mkdir(parents=True, exist_ok=True)

    def owner(self) -> str | None:
        """The database that the folder belongs to; None for a new one."""
        try:
            return self._owner.read_text("ascii")
        except FileNotFoundError:
            return None

    def claim(self, owner: str) -> None:
        """Notes which database the folder belongs to."""
        self._owner.write_text(owner, "ascii")

    def path(self, name: str) -> Path:
        """Where the blob of a name is."""
        return self._root / name[:2] / name

    @asynccontextmanager
    async def writer(self) -> AsyncIterator[BlobWriter]:
        """A new blob; gone unless the block commits it.

        Raises:
            Unavailable: STORE_UNAVAILABLE, the folder refuses.
        """
        name = uuid.uuid4().hex
        temporary = self._aside / name
        with _disk_errors():
            stream = await asyncio.to_thread(open, temporary, "wb")
        writer = BlobWriter(stream, temporary, self.path(name))
        try:
            yield writer
        finally:
            if not writer.is_committed:
                stream.close()
                temporary.unlink(missing_ok=True)

    async def chunks(self, name: str) -> AsyncGenerator[bytes, None]:
        """The blob piece by piece.

        Raises:
            Unavailable: STORE_UNAVAILABLE, it cannot be read.
        """
        with _disk_errors():
            stream = await asyncio.to_thread(open, self.path(name), "rb")
        try:
            while True:
                with _disk_errors():
                    data = await asyncio.to_thread(stream.read, _READ_BYTES)
                if not data:
                    return
                yield data
        finally:
            stream.close()

    async def delete(self, name: str) -> None:
        """Removes a blob; one that is gone is fine."""
        await asyncio.to_thread(self.path(name).unlink, True)

    def orphans(self, known: Iterable[str], older_than: float) -> list[Path]:
        """Blobs and unfinished writes without a row, left by a crash.

        Args:
            known: names that have rows.
            older_than: seconds; younger ones may be about to get their row.
        """
        rows = set(known)
        limit = time.time() - older_than
        found = []
        for path in self._root.glob("*/*"):
            is_orphan = path.parent == self._aside or path.name not in rows
            try:
                if is_orphan and path.stat().st_mtime < limit:
                    found.append(path)
            except FileNotFoundError:
                continue  # another replica removed it
        return found


class _disk_errors:
    """Turns what a full or broken disk raises into Unavailable."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, _trace: object) -> None:
        if isinstance(error, OSError):
            raise Unavailable(
                f"the store's folder refuses: {os.strerror(error.errno or 0)}",
                reason="STORE_UNAVAILABLE",
                retry_after=1.0,
            ) from None


def _flush_folder(folder: Path) -> None:
    """Makes a rename last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
