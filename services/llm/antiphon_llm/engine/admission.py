"""Which waiting request may go next, and which had better wait for another's prefix.

Prefix-serial admission: a request that lacks the same next entry as one that is being
prefilled would compute it a second time. It waits until that leader's prompt is published and
then shares it, if waiting is the shorter way; unrelated requests pass it meanwhile. A leader
that leaves its row in any way leads nobody, so a wait ends with the step at the latest in
which nothing is computed for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from .holdings import Holdings, reads_cache, writes_cache
from .queues import ClassQueue
from .request import Request

WINDOW = 128
"""Waiting requests that one plan looks at."""


class Admission:
    """Chooses among waiting requests of one class and knows the leaders of prefixes.

    Args:
        tenant_rows_max: rows that one tenant may hold in one class.
    """

    def __init__(self, holdings: Holdings, *, tenant_rows_max: int) -> None:
        self._holdings = holdings
        self._tenant_rows_max = tenant_rows_max
        self._rows: Counter[tuple[bool, str]] = Counter()
        self._leaders: dict[tuple[bool, bytes], Request] = {}
        self.prefix_waits = 0
        """Times that a plan passed a request over because a leader computes its prefix."""
        self.tenant_waits = 0
        """Times that a plan passed a tenant over because it holds all rows it may."""

    def candidates(
        self, queue: ClassQueue, *, interactive: bool
    ) -> Iterator[tuple[Request, tuple[int, int]]]:
        """Requests to admit, in turn, with what the cache has of each (``Holdings.match``);
        the consumer admits each or stops."""

        def has_room(tenant: str) -> bool:
            room = self._rows[interactive, tenant] < self._tenant_rows_max
            self.tenant_waits += not room
            return room

        for request in queue.in_turn(has_room, WINDOW):
            if request.behind:
                if (interactive, request.behind) in self._leaders:
                    self.prefix_waits += 1
                    continue
                request.behind = b""
            match = self._holdings.match(request)
            if self._waits(request, match[0]):
                request.behind = request.prefix_keys[match[0]]
                self.prefix_waits += 1
            else:
                yield request, match

    def opened(self, request: Request) -> None:
        """The request got a row: its tenant holds one more, and it may lead others."""
        self._rows[request.interactive, request.tenant] += 1
        cached = request.written // self._holdings.tables.entry_tokens
        if writes_cache(request) and cached < len(request.prefix_keys):
            key = request.prefix_keys[cached]
            if self._leaders.setdefault((request.interactive, key), request) is request:
                request.leads = key

    def published(self, request: Request) -> None:
        """The request's prefix can be shared, or never will be."""
        if request.leads:
            del self._leaders[request.interactive, request.leads]
            request.leads = b""

    def closed(self, request: Request) -> None:
        """The request lost its row."""
        self.published(request)
        key = request.interactive, request.tenant
        self._rows[key] -= 1
        if not self._rows[key]:
            del self._rows[key]

    def check_integrity(self, running: Sequence[Request]) -> None:
        """Raises unless tenants' rows and leaders are those of the running requests."""
        if self._rows != Counter((request.interactive, request.tenant) for request in running):
            raise RuntimeError("tenants' rows are not those of the running requests")
        leaders = {(request.interactive, request.leads): request for request in running
                   if request.leads}  # fmt: skip
        if leaders != self._leaders:
            raise RuntimeError("a leader of a prefix has no row")

    def _waits(self, request: Request, cached: int) -> bool:
        """Whether a leader computes what this request lacks and is done before it would be.

        Both computed side by side, this one ends after twice the smaller prompt at the
        earliest; after the leader it has only its own rest left.
        """
        keys = request.prefix_keys
        if not self._leaders or cached >= len(keys) or not reads_cache(request):
            return False
        if request.parked is not None:
            return False
        leader = self._leaders.get((request.interactive, keys[cached]))
        if leader is None:
            return False
        theirs = leader.prefix_keys
        longest = min(len(keys), len(theirs))
        same = bisect_left(range(longest), True, key=lambda place: keys[place] != theirs[place])
        unit = self._holdings.tables.entry_tokens
        missing = len(request.tokens) - cached * unit
        return leader.pending <= missing + (same - cached) * unit
