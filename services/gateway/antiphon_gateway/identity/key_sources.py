"""Where keys are looked up: the configuration, a file, the store."""

from __future__ import annotations

import hmac
import time
import tomllib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from antiphon_core import metrics
from antiphon_core.errors import FailedPrecondition, Unavailable
from antiphon_core.logs import get_logger

from antiphon_gateway.identity.keys import KeyRecord

FRESH_SECONDS = 2.0
"""Age at which what is known of a key is looked up again: revocation is seen within 5 s."""
_CACHED_KEYS = 10_000

log = get_logger(__name__)


class KeySource(Protocol):
    """A place where keys are."""

    async def find(self, digest: str) -> KeyRecord | None:
        """The record of a key; None when this source does not have it.

        Raises:
            Unavailable: the source does not answer.
        """
        ...


class FixedKeys:
    """Keys that do not change while the process lives.

    Args:
        digests: SHA-256 hex of each; they grant what a key grants by default.
    """

    def __init__(self, digests: Sequence[str]) -> None:
        self._records = [KeyRecord(digest) for digest in digests]

    async def find(self, digest: str) -> KeyRecord | None:
        """See KeySource."""
        return match(digest, self._records)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[KeyRecord]


class KeyFile:
    """Keys of a TOML file, read again when it changes.

    A change that cannot be read is logged and counted, and the former keys stay.

    Raises:
        FailedPrecondition: the file cannot be read at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._looked_at = time.monotonic()
        self._records: list[KeyRecord] = []
        try:
            self._load()
        except (OSError, ValueError) as error:
            raise FailedPrecondition(
                f"the keys file {path} cannot be read: {error}", field="identity.keys_file"
            ) from None

    async def find(self, digest: str) -> KeyRecord | None:
        """See KeySource."""
        now = time.monotonic()
        if now - self._looked_at >= FRESH_SECONDS:
            self._looked_at = now
            try:
                self._load()
            except (OSError, ValueError) as error:
                metrics.fallback("keys_file", "unreadable")
                log.error("keys_file_unreadable", path=str(self._path), error=str(error))
        return match(digest, self._records)

    def _load(self) -> None:
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            # msgspec's ValidationError is a ValueError, as TOML's own is.
            table = tomllib.loads(self._path.read_text(encoding="utf-8"))
            self._records = msgspec.convert(table, _File).keys
            self._stamp = stamp


class KeyReader(Protocol):
    """What the store offers for keys."""

    async def find(self, digest: str) -> KeyRecord | None: ...


class StoredKeys:
    """Keys of the store, remembered for a moment.

    Args:
        reader: asks the store.
        grace_seconds: for keys seen before, while the store is lost.
    """

    def __init__(self, reader: KeyReader, grace_seconds: float) -> None:
        self._reader = reader
        self._grace = grace_seconds
        self._known: OrderedDict[str, tuple[float, KeyRecord | None]] = OrderedDict()

    async def find(self, digest: str) -> KeyRecord | None:
        """See KeySource."""
        now = time.monotonic()
        looked_at, record = self._known.get(digest, (float("-inf"), None))
        if now - looked_at < FRESH_SECONDS:
            return record
        try:
            found = await self._reader.find(digest)
        except Unavailable:
            if record is None or now - looked_at > FRESH_SECONDS + self._grace:
                raise
            metrics.fallback("stored_keys", "store_unavailable")
            return record
        self._known[digest] = (now, found)
        self._known.move_to_end(digest)
        if len(self._known) > _CACHED_KEYS:
            self._known.popitem(last=False)
        # The row was found by equality; the comparison that admits takes the same time for all.
        return match(digest, [found] if found else [])


def match(digest: str, records: Iterable[KeyRecord]) -> KeyRecord | None:
    """The record of a digest; every one is compared, so that the time tells nothing."""
    found = None
    for record in records:
        if hmac.compare_digest(record.sha256, digest):
            found = record
    return found
