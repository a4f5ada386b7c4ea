"""Which written entries can be shared: a tree of full entries, by what their tokens are.

A node is one full entry. Its key is the BLAKE2b digest of (key of the parent, token count,
tokens), so a key names the whole prefix that ends there. A root's key is made of the tenant,
the adapter with its version and the model's fingerprint, so nothing is ever shared between two
of them. The digests chain, therefore one dictionary finds every node, and because nodes leave
from the leaves upwards, the nodes present of any chain are a prefix of it: the longest match is
found by bisection.

A holder of a node holds all nodes above it. Nodes that nobody holds stay until somebody needs
their entry; they go in the order in which they were last released. (Radix tree over pages with
LRU leaves: SGLang, RadixAttention; chained digests of blocks: vLLM.)
"""

from __future__ import annotations

import heapq
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from .allocator import EntryAllocator

KEY_BYTES = 32
_HEAP_SLACK = 64
"""Outdated items that the eviction heap may hold beside as many as there are nodes."""


class Node:
    """One shared entry; ``refs`` counts the holders of it or of a node below it."""

    __slots__ = ("children", "entry", "key", "parent", "refs", "root", "stamp")

    def __init__(self, key: bytes, entry: int, parent: Node | None, root: Root | None) -> None:
        self.key = key
        self.entry = entry
        self.parent = parent
        self.root: Root = root if root is not None else self  # type: ignore[assignment]
        self.refs = 0
        self.children = 0
        self.stamp = 0


class Root(Node):
    """Where the prefixes of one tenant, adapter and model begin; has no entry."""

    __slots__ = ("reachable", "tenant")

    def __init__(self, key: bytes, tenant: str) -> None:
        super().__init__(key, 0, None, None)
        self.tenant = tenant
        self.reachable = True


def root_key(tenant: str, adapter: str, adapter_version: int, fingerprint: bytes) -> bytes:
    """Digest of a root's identity; each part goes with its length."""
    digest = blake2b(digest_size=KEY_BYTES)
    for part in (tenant.encode(), adapter.encode(), adapter_version.to_bytes(8), fingerprint):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def extend_keys(
    keys: list[bytes], root: bytes, tokens: Sequence[int], entry_tokens: int, length: int
) -> None:
    """Appends to ``keys`` until it has one for each full entry of the first ``length`` tokens.

    Tokens are below 2^64: salts of media that stand for tokens fill the range from 2^63.
    """
    count = entry_tokens.to_bytes(8, "little")
    for index in range(len(keys), length // entry_tokens):
        words = array("Q", tokens[index * entry_tokens : (index + 1) * entry_tokens])
        if sys.byteorder == "big":
            words.byteswap()
        parent = keys[-1] if keys else root
        keys.append(blake2b(parent + count + words.tobytes(), digest_size=KEY_BYTES).digest())


class PrefixTree:
    """Shared entries of one pool. The tree owns the entries of its nodes.

    Args:
        allocator: where entries of dropped nodes go back to.
        fingerprint: identifies the model and everything else that keys and values depend on.
    """

    def __init__(self, allocator: EntryAllocator, *, fingerprint: bytes) -> None:
        self._allocator = allocator
        self.fingerprint = fingerprint
        self.evictable = 0
        """Nodes that nobody holds: entries that ``evict`` can free."""
        self.evictions = 0
        self._nodes: dict[bytes, Node] = {}
        self._roots: dict[bytes, Root] = {}
        self._detached = 0
        self._heap: list[tuple[int, int, Node]] = []
        self._tick = 0

    def __len__(self) -> int:
        """Entries that the tree owns, flushed ones that are still held included."""
        return len(self._nodes) + self._detached

    def __contains__(self, key: bytes) -> bool:
        return key in self._nodes

    def root(self, key: bytes, tenant: str) -> Root:
        """The root with this key; made if there is none, and gone again once unused."""
        root = self._roots.get(key)
        if root is None:
            root = self._roots[key] = Root(key, tenant)
        return root

    def match(self, keys: Sequence[bytes], limit: int) -> tuple[int, int]:
        """How many of the first ``limit`` keys are present, and how many of those nobody holds.

        Both by bisection: a present node's ancestors are present, a held node's are held.
        """
        nodes = self._nodes
        limit = min(limit, len(keys))
        if not limit or keys[0] not in nodes:
            return 0, 0
        present = bisect_left(range(limit), True, key=lambda place: keys[place] not in nodes)
        held = bisect_left(range(present), True, key=lambda place: not nodes[keys[place]].refs)
        return present, present - held

    def hold(self, root: Root, keys: Sequence[bytes], count: int) -> tuple[Node, list[int]]:
        """Holds the node of ``keys[count - 1]``, the root for count 0; returns it and the
        ``count`` entries from the root down to it."""
        node = deepest = self._nodes[keys[count - 1]] if count else root
        entries = []
        while node.parent is not None:
            if not node.refs:
                self.evictable -= 1
            node.refs += 1
            entries.append(node.entry)
            node = node.parent
        node.refs += 1
        entries.reverse()
        return deepest, entries

    def release(self, deepest: Node) -> None:
        """Undoes a ``hold``, or the one that ``publish`` moved down."""
        self._tick += 1
        root = deepest.root
        node = deepest
        dropped = []
        while node.parent is not None:
            node.refs -= 1
            if not node.refs:
                if root.reachable:
                    self.evictable += 1
                    node.stamp = self._tick
                else:
                    dropped.append(node.entry)
            node = node.parent
        node.refs -= 1
        self._detached -= len(dropped)
        self._allocator.give_back(dropped)
        self._offer(deepest)

    def publish(
        self, deepest: Node, keys: Sequence[bytes], entries: Sequence[int]
    ) -> tuple[Node, list[int], list[int]]:
        """Hands a holder's further full entries over to the tree, below the node it holds.

        Where an equal node is present the holder shares that one and keeps its own entry.

        Returns:
            The node that is held now instead of ``deepest``, the entry that serves each key,
            and the holder's entries that none of them needs.
        """
        if not deepest.root.reachable:
            raise RuntimeError("a flushed prefix cannot be continued")
        node = deepest
        serving, duplicates = [], []
        for key, entry in zip(keys, entries, strict=True):
            child = self._nodes.get(key)
            if child is None:
                child = self._nodes[key] = Node(key, entry, node, node.root)
                node.children += 1
            else:
                duplicates.append(entry)
                if not child.refs:
                    self.evictable -= 1
            child.refs += 1
            serving.append(child.entry)
            node = child
        return node, serving, duplicates

    def evict(self, count: int) -> None:
        """Frees ``count`` entries, the leaves released longest ago first."""
        freed: list[int] = []
        while len(freed) < count:
            if not self._heap:
                raise RuntimeError(f"{count} entries to evict, found {len(freed)}")
            stamp, _, node = heapq.heappop(self._heap)
            if stamp == node.stamp and self._is_leaf(node):
                self._evict_upwards(node, count, freed)
        self.evictable -= count
        self.evictions += count
        self._allocator.give_back(freed)

    def flush(self, tenant: str | None = None) -> int:
        """Makes all nodes, or one tenant's, unreachable: those that are held are freed when
        their holders leave, the others now. Returns how many are free now."""
        for key, root in list(self._roots.items()):
            if tenant is None or root.tenant == tenant:
                root.reachable = False
                del self._roots[key]
        freed = []
        for key, node in list(self._nodes.items()):
            if not node.root.reachable:
                del self._nodes[key]
                if node.refs:
                    self._detached += 1
                else:
                    freed.append(node.entry)
        self.evictable -= len(freed)
        self._allocator.give_back(freed)
        return len(freed)

    def entries(self) -> Iterator[int]:
        """Entries of the reachable nodes."""
        return (node.entry for node in self._nodes.values())

    def check_integrity(self, holders: Sequence[Node]) -> list[int]:
        """Raises unless the counts agree with the nodes that are held, one item per holder.

        Returns:
            Every entry that the tree owns.
        """
        refs: dict[Node, int] = {}
        for deepest in holders:
            node: Node | None = deepest
            while node is not None:
                refs[node] = refs.get(node, 0) + 1
                node = node.parent
        nodes = [*self._nodes.values(), *(node for node in refs if node.parent is not None)]
        nodes = list(dict.fromkeys(nodes))
        if any(node.refs != refs.get(node, 0) for node in nodes):
            raise RuntimeError("references of prefix nodes do not match their holders")
        if self.evictable != sum(not node.refs for node in nodes) or len(nodes) != len(self):
            raise RuntimeError("counts of prefix nodes are wrong")
        children: dict[Node, int] = {}
        for node in self._nodes.values():
            assert node.parent is not None
            children[node.parent] = children.get(node.parent, 0) + 1
        if any(node.children != children.get(node, 0) for node in self._nodes.values()):
            raise RuntimeError("child counts of prefix nodes are wrong")
        offered = {node for stamp, _, node in self._heap if stamp == node.stamp}
        if any(self._is_leaf(node) and node not in offered for node in self._nodes.values()):
            raise RuntimeError("a node that nobody holds cannot be evicted")
        if any(not root.refs and not root.children for root in self._roots.values()):
            raise RuntimeError("an unused root is kept")
        return [node.entry for node in nodes]

    def _is_leaf(self, node: Node) -> bool:
        """Whether the node can be evicted now."""
        return not node.refs and not node.children and self._nodes.get(node.key) is node

    def _evict_upwards(self, leaf: Node, count: int, freed: list[int]) -> None:
        """Drops a leaf, then its ancestors as long as each is the next to go anyway: a path
        that was released as a whole is taken without passing through the heap."""
        node: Node | None = leaf
        while node is not None and node.parent is not None:
            parent = node.parent
            freed.append(node.entry)
            del self._nodes[node.key]
            parent.children -= 1
            if parent.children or parent.refs:
                return
            earlier = self._heap and self._heap[0][0] < parent.stamp
            if parent.parent is None or earlier or len(freed) == count:
                self._offer(parent)
                return
            node = parent

    def _offer(self, node: Node) -> None:
        """Puts a node that has become an unheld leaf in the order of eviction; drops a root
        that has become unused."""
        if node.refs or node.children or not node.root.reachable:
            return
        if node.parent is None:
            del self._roots[node.key]
            return
        self._tick += 1
        heapq.heappush(self._heap, (node.stamp, self._tick, node))
        if len(self._heap) > 2 * len(self._nodes) + _HEAP_SLACK:
            leaves = [leaf for leaf in self._nodes.values() if self._is_leaf(leaf)]
            self._heap = [(leaf.stamp, place, leaf) for place, leaf in enumerate(leaves)]
            heapq.heapify(self._heap)
