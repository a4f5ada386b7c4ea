"""What requests hold of the KV pool: their rows, entries, shared prefixes and promises.

Every entry is in one place: free, in a row, in the prefix tree, or in quarantine. Entries go to
quarantine when a launched step may still write them although their request has left, or still
reads them for a request that shares others instead by now; they are freed, or published, when
that step settles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.prefix_tree import Node, PrefixTree, extend_keys, root_key

from .request import Request

_STOCKED_SHARE = 1 / 32
"""Of the pool, what may be kept free though the prefix cache could still use it."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Entries that wait for a step to settle; with ``node``, full ones go below it then."""

    entries: list[int]
    node: Node | None
    keys: Sequence[bytes]


def reads_cache(request: Request) -> bool:
    """Whether a cached prefix may stand in for computing it.

    Prompt log-probabilities, and pooling but for the last state, need what comes before.
    """
    return request.cache and not request.reads_whole_prompt


def writes_cache(request: Request) -> bool:
    """Whether others may use what this request writes."""
    return request.cache


class Holdings:
    """The one place that moves entries between the pool, rows, the prefix tree and quarantine.

    ``promised`` counts entries that running requests were promised and have not taken; it
    never exceeds what is free or can be evicted.
    """

    def __init__(self, tables: BlockTables, tree: PrefixTree | None) -> None:
        self.tables = tables
        self.tree = tree
        self.promised = 0
        self.quarantined = 0
        self._unit = tables.entry_tokens
        rows, entries = len(tables.table), tables.allocator.entries
        self._stock = min(rows, int(_STOCKED_SHARE * entries))
        self._nodes: list[Node | None] = [None] * len(tables.table)
        self._shared = [0] * len(tables.table)
        self._quarantine: dict[int, list[Quarantined]] = {}

    @property
    def available(self) -> int:
        """Entries that can be taken and are promised to nobody."""
        return self._obtainable() - self.promised

    @property
    def cached(self) -> int:
        """Entries that only the prefix tree holds."""
        return self.tree.evictable if self.tree is not None else 0

    def private(self, request: Request) -> int:
        """Entries that would come free if this running request left."""
        return self.tables.held(request.row) - self._shared[request.row]

    def name_prefixes(self, request: Request) -> None:
        """Brings the keys of the request's full entries up to its committed tokens."""
        if self.tree is None or not writes_cache(request):
            return
        if not request.prefix_root:
            request.prefix_root = root_key(
                request.tenant, request.adapter, request.adapter_version, self.tree.fingerprint
            )
        extend_keys(
            request.prefix_keys, request.prefix_root, request.tokens, self._unit,
            len(request.tokens),
        )  # fmt: skip

    def match(self, request: Request) -> tuple[int, int]:
        """Entries of the longest usable cached prefix, and how many of them nobody holds.

        At least one token is left to compute, for there must be logits to draw from.
        """
        if self.tree is None or not reads_cache(request):
            return 0, 0
        return self.tree.match(request.prefix_keys, (len(request.tokens) - 1) // self._unit)

    def open(self, request: Request, cached: int) -> None:
        """Gives a waiting request a row that begins with ``cached`` shared entries, and a
        promise of the entries for the rest of its known tokens."""
        row = request.row = self.tables.open()
        self._nodes[row] = None
        self._shared[row] = cached
        if self.tree is not None and writes_cache(request):
            root = self.tree.root(request.prefix_root, request.tenant)
            node, entries = self.tree.hold(root, request.prefix_keys, cached)
            self._nodes[row] = node
            self.tables.adopt(row, entries)
        request.written = request.settled = cached * self._unit
        request.room = request.written
        request.promised = self.tables.entries_for(len(request.tokens)) - cached
        self.promised += request.promised

    def extend(self, request: Request, length: int) -> None:
        """Takes the entries that ``length`` written tokens need beyond those held."""
        count = self.tables.need(request.row, length)
        if count:
            self._take(request, count)
            kept = min(count, request.promised)
            request.promised -= kept
            self.promised -= kept

    def grow(self, request: Request) -> None:
        """Takes one entry more than the request was promised."""
        self._take(request, 1)

    def trim(self, request: Request) -> None:
        """Frees the entries behind what is written; no launched step may use them."""
        entries = self.tables.trim(request.row, request.written)
        request.room -= len(entries) * self._unit
        self.tables.allocator.give_back(entries)

    def stock(self) -> None:
        """Evicts until a few entries are free, so that the next plan need not: this costs time
        while the device is busy, and the plan when it is not."""
        if self.tree is not None:
            short = min(self._stock - self.tables.allocator.free, self.tree.evictable)
            if short > 0:
                self.tree.evict(short)

    def publish(self, request: Request) -> None:
        """Shares the full entries that settled steps have written.

        Does nothing where that would break a promise: a cached entry that serves in place of an
        equal one can be evicted no more, and the equal one is not free before the launched
        steps that read it have settled.
        """
        row = request.row
        node, first = self._nodes[row], self._shared[row]
        if node is None or not node.root.reachable:
            return
        assert self.tree is not None
        self.name_prefixes(request)
        full = min(request.settled, len(request.tokens)) // self._unit
        if full > first:
            if request.settled < request.written:
                _, unheld = self.tree.match(request.prefix_keys, full)
                if unheld > self.available:
                    return
            self._nodes[row], serving, duplicates = self.tree.publish(
                node, request.prefix_keys[first:full], self.tables.span(row, first, full)
            )
            self._shared[row] = full
            self.tables.replace(row, first, serving)
            self._free_when_unread(request, duplicates)

    def release(self, request: Request, *, publish: bool) -> None:
        """Takes the request's row and everything that it holds.

        Entries that no launched step may write are published, if asked to and if full, or
        freed; the others go to quarantine.
        """
        self.promised -= request.promised
        request.promised = 0
        if publish:
            self.publish(request)
        row = request.row
        node, shared = self._nodes[row], self._shared[row]
        self._nodes[row] = None
        entries = self.tables.detach(row)
        if request.settled < request.written:
            safe = max(shared, request.settled // self._unit)
        else:
            safe = len(entries)
        self.tables.allocator.give_back(entries[shared:safe])
        if safe == len(entries):
            self._release_node(node)
            return
        full = min(request.written, len(request.tokens)) // self._unit
        follows = publish and node is not None and shared == safe
        keys = request.prefix_keys[safe:full] if follows else []
        if not keys:
            self._release_node(node)
            node = None
        self._detain(request, Quarantined(entries[safe:], node, keys))

    def settle(self, number: int, *, publish: bool) -> None:
        """Frees, or publishes where that was asked for, what waited for this step."""
        for left in self._quarantine.pop(number, ()):
            self.quarantined -= len(left.entries)
            freed = left.entries
            node = left.node
            if publish and node is not None and node.root.reachable:
                assert self.tree is not None
                full = left.entries[: len(left.keys)]
                node, _, duplicates = self.tree.publish(node, left.keys, full)
                freed = [*duplicates, *left.entries[len(left.keys) :]]
            self.tables.allocator.give_back(freed)
            self._release_node(node)

    def check_integrity(self, running: Sequence[Request]) -> None:
        """Raises unless entries, references and promises add up exactly."""
        waiting = [left for group in self._quarantine.values() for left in group]
        nodes = [node for node in self._nodes if node is not None]
        nodes += [left.node for left in waiting if left.node is not None]
        tree = self.tree.check_integrity(nodes) if self.tree is not None else []
        rows = {request.row for request in running}
        private = [
            entry
            for row in rows
            for entry in self.tables.span(row, self._shared[row], self.tables.held(row))
        ]
        quarantined = [entry for left in waiting for entry in left.entries]
        self.tables.check_integrity()
        self.tables.allocator.check_integrity([*private, *tree, *quarantined])
        if len(quarantined) != self.quarantined:
            raise RuntimeError("the count of quarantined entries is wrong")
        for request in running:
            node: Node | None = self._nodes[request.row]
            shared = self.tables.span(request.row, 0, self._shared[request.row])
            while node is not None and node.parent is not None:
                if not shared or shared.pop() != node.entry:
                    raise RuntimeError(f"{request.request_id} holds other entries than its prefix")
                node = node.parent
            if shared:
                raise RuntimeError(f"{request.request_id} shares entries that it does not hold")
            if request.room != self.tables.held(request.row) * self._unit:
                raise RuntimeError(f"{request.request_id} counts other entries than it holds")
        promised = sum(request.promised for request in running)
        if self.promised != promised or promised > self._obtainable():
            raise RuntimeError(
                f"{self.promised} entries promised, {promised} by requests, "
                f"{self._obtainable()} to be had"
            )

    def _free_when_unread(self, request: Request, entries: list[int]) -> None:
        """Frees entries now, or once the launched steps that read them for the request have
        settled."""
        if request.settled == request.written or not entries:
            self.tables.allocator.give_back(entries)
        else:
            self._detain(request, Quarantined(entries, None, ()))

    def _detain(self, request: Request, left: Quarantined) -> None:
        self._quarantine.setdefault(request.launched, []).append(left)
        self.quarantined += len(left.entries)

    def _take(self, request: Request, count: int) -> None:
        allocator = self.tables.allocator
        if count > allocator.free and self.tree is not None:
            self.tree.evict(count - allocator.free)
        self.tables.adopt(request.row, allocator.take(count))
        request.room += count * self._unit

    def _obtainable(self) -> int:
        return self.tables.allocator.free + self.cached

    def _release_node(self, node: Node | None) -> None:
        if node is not None:
            assert self.tree is not None
            self.tree.release(node)
