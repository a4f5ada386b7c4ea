"""A queue that wakes its reader once per burst."""

from __future__ import annotations

import threading


class Inbox:
    """Items from any thread, taken by one reader, all at once.

    A failure set by ``fail`` is raised to the reader after the items that came before it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: list[object] = []
        self._signalled = False
        self._wake = threading.Event()
        self._failure: BaseException | None = None

    def put(self, item: object) -> None:
        """Adds an item; only the first of a burst wakes the reader."""
        with self._lock:
            self._items.append(item)
            if not self._signalled:
                self._signalled = True
                self._wake.set()

    def fail(self, error: BaseException) -> None:
        """Makes the reader raise; the first failure stays."""
        with self._lock:
            if self._failure is None:
                self._failure = error
            self._signalled = True
            self._wake.set()

    def wait(self, timeout: float | None) -> bool:
        """Blocks until an item or a failure is there; False after ``timeout`` seconds."""
        return self._wake.wait(timeout)

    def drain(self) -> list[object]:
        """All items so far, without waiting.

        Raises:
            BaseException: the failure, once no item is left.
        """
        with self._lock:
            items, self._items = self._items, []
            if self._failure is None:
                self._signalled = False
                self._wake.clear()
            elif not items:
                raise self._failure
        return items

    @property
    def failed(self) -> bool:
        """Whether ``fail`` was called."""
        return self._failure is not None
