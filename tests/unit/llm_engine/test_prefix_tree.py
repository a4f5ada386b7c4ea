"""The prefix tree against a naive model, its digests, and what flushing leaves."""

from __future__ import annotations

import random
import struct
from hashlib import blake2b

import pytest
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.prefix_tree import Node, PrefixTree, extend_keys, root_key
from hypothesis import given, settings
from hypothesis import strategies as st

UNIT = 2


def chain(root: bytes, tokens: list[int]) -> list[bytes]:
    keys: list[bytes] = []
    extend_keys(keys, root, tokens, UNIT, len(tokens))
    return keys


class Cache:
    """A tree whose holders are written down, as the engine's rows would."""

    def __init__(self, entries: int = 40) -> None:
        self.allocator = EntryAllocator(entries)
        self.tree = PrefixTree(self.allocator, fingerprint=b"model")
        self.held: list[Node] = []

    def serve(self, tokens: list[int], tenant: str = "") -> tuple[Node, list[bytes], int]:
        """Holds the longest match and publishes the rest; the caller releases the node."""
        key = root_key(tenant, "", 0, self.tree.fingerprint)
        keys = chain(key, tokens)
        count, _ = self.tree.match(keys, len(keys))
        node, entries = self.tree.hold(self.tree.root(key, tenant), keys, count)
        assert len(entries) == count
        fresh = len(keys) - count
        if fresh > self.allocator.free:
            self.tree.evict(fresh - self.allocator.free)
        node, _, duplicates = self.tree.publish(node, keys[count:], self.allocator.take(fresh))
        assert not duplicates
        self.held.append(node)
        return node, keys, count

    def release(self, node: Node) -> None:
        self.held.remove(node)
        self.tree.release(node)

    def check(self) -> None:
        owned = self.tree.check_integrity(self.held)
        self.allocator.check_integrity(owned)
        assert self.allocator.free + len(owned) == self.allocator.entries


def test_digests_are_those_of_the_specification() -> None:
    root = root_key("käse", "style", 3, b"print")
    parts = ["käse".encode(), b"style", (3).to_bytes(8, "big"), b"print"]
    packed = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    assert root == blake2b(packed, digest_size=32).digest()
    media = 2**63 + 5
    keys = chain(root, [1, media, 7, 2**64 - 1, 9])
    first = blake2b(root + struct.pack("<QQQ", 2, 1, media), digest_size=32).digest()
    second = blake2b(first + struct.pack("<QQQ", 2, 7, 2**64 - 1), digest_size=32).digest()
    assert keys == [first, second]


def test_roots_differ_in_every_part_and_in_where_a_part_ends() -> None:
    identities = [
        ("a", "", 0, b"m"), ("b", "", 0, b"m"), ("a", "x", 0, b"m"), ("a", "x", 1, b"m"),
        ("a", "", 0, b"n"), ("ax", "", 0, b"m"), ("", "ax", 0, b"m"),
    ]  # fmt: skip
    assert len({root_key(*identity) for identity in identities}) == len(identities)


def test_keys_grow_with_the_tokens_and_are_never_made_again() -> None:
    keys: list[bytes] = []
    tokens = list(range(9))
    extend_keys(keys, b"root", tokens[:5], UNIT, 5)
    before = list(keys)
    extend_keys(keys, b"root", tokens, UNIT, 9)
    assert keys[:2] == before and len(keys) == 4
    assert keys == chain(b"root", tokens)


def test_the_longest_prefix_is_found_and_only_what_nobody_holds_counts_as_free() -> None:
    cache = Cache()
    first, keys, _ = cache.serve([1, 2, 3, 4, 5, 6])
    assert cache.tree.match(keys, 3) == (3, 0)
    assert cache.tree.match(keys, 2) == (2, 0), "no more than was asked for"
    second, other, count = cache.serve([1, 2, 3, 4, 9, 9])
    assert count == 2
    cache.release(first)
    assert cache.tree.match(keys, 3) == (3, 1) and cache.tree.evictable == 1
    assert cache.tree.match(other, 3) == (3, 0)
    cache.release(second)
    assert cache.tree.evictable == 4 == len(cache.tree)
    cache.check()


def test_an_equal_node_is_shared_and_the_second_entry_is_not_needed() -> None:
    cache = Cache()
    root = root_key("", "", 0, b"model")
    keys = chain(root, [1, 2, 3, 4])
    nodes = [cache.tree.hold(cache.tree.root(root, ""), keys, 0)[0] for _ in range(2)]
    own = [cache.allocator.take(2) for _ in nodes]
    for index, entries in enumerate(own):
        nodes[index], serving, duplicates = cache.tree.publish(nodes[index], keys, entries)
        assert serving == own[0] and duplicates == (own[1] if index else [])
        cache.allocator.give_back(duplicates)
    cache.held = nodes
    assert nodes[0] is nodes[1] and cache.allocator.used == 2
    cache.check()


def test_leaves_go_in_the_order_of_their_release() -> None:
    cache = Cache(entries=8)
    old, old_keys, _ = cache.serve([1, 1, 2, 2])
    young, young_keys, _ = cache.serve([3, 3, 4, 4])
    cache.release(young)
    cache.release(old)
    again, *_ = cache.serve([3, 3, 4, 4])
    cache.release(again)
    cache.tree.evict(1)
    assert cache.tree.match(old_keys, 2) == (1, 1), "the deepest of the path goes first"
    cache.tree.evict(1)
    assert cache.tree.match(old_keys, 2) == (0, 0)
    assert cache.tree.match(young_keys, 2) == (2, 2)
    with pytest.raises(RuntimeError, match="3 entries to evict, found 2"):
        cache.tree.evict(3)


def test_a_flush_ends_reachability_and_leaves_held_entries_alone() -> None:
    cache = Cache()
    node, keys, _ = cache.serve([1, 2, 3, 4], "a")
    gone, _, _ = cache.serve([1, 2, 7, 7], "a")
    kept, other, _ = cache.serve([1, 2, 3, 4], "b")
    cache.release(gone)
    cache.release(kept)
    assert cache.tree.flush("a") == 1, "only what nobody holds is free now"
    cache.check()
    assert cache.tree.match(keys, 2) == (0, 0) and cache.tree.match(other, 2) == (2, 2)
    assert cache.allocator.used == 4, "two entries are held, two are the other tenant's"
    with pytest.raises(RuntimeError, match="flushed"):
        cache.tree.publish(node, keys[:1], [1])
    fresh, _, count = cache.serve([1, 2, 3, 4], "a")
    assert count == 0
    cache.release(node)
    cache.release(fresh)
    cache.check()
    cache.tree.flush()
    cache.check()
    assert cache.allocator.used == 0 and not len(cache.tree)


def test_what_is_evicted_and_its_heap_stay_bounded() -> None:
    cache = Cache(entries=30)
    for turn in range(3000):
        node, *_ = cache.serve([1, 2, turn % 3, 4, turn % 7, turn % 11])
        cache.release(node)
    cache.check()
    assert len(cache.tree._heap) <= 2 * len(cache.tree) + 65
    assert len(cache.tree._roots) == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_any_history_agrees_with_a_naive_model(seed: int) -> None:
    """Model: the set of (tenant, prefix) present, and the order of last releases."""
    chance = random.Random(seed)
    cache = Cache(entries=24)
    present: dict[tuple[str, tuple[int, ...]], int] = {}
    holders: list[tuple[Node, str, tuple[int, ...]]] = []
    clock = 0

    def prefixes(tokens: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [tokens[:end] for end in range(UNIT, len(tokens) + 1, UNIT)]

    def held(tenant: str, prefix: tuple[int, ...]) -> bool:
        return any(t == tenant and other[: len(prefix)] == prefix for _, t, other in holders)

    def evict(count: int, but: tuple[str, tuple[int, ...]] = ("", ())) -> None:
        for _ in range(count):
            leaves = [
                (stamp, tenant, prefix) for (tenant, prefix), stamp in present.items()
                if not held(tenant, prefix)
                and not (tenant == but[0] and but[1][: len(prefix)] == prefix)
                and not any(t == tenant and other[:-UNIT] == prefix for t, other in present)
            ]  # fmt: skip
            oldest = min(stamp for stamp, _, _ in leaves)
            # Paths released at once share a stamp, but have one leaf.
            (victim,) = [leaf for leaf in leaves if leaf[0] == oldest]
            del present[victim[1], victim[2]]

    for _ in range(60):
        clock += 1
        action = chance.random()
        if action < 0.55 and len(holders) < 5:
            tenant = chance.choice("ab")
            tokens = tuple(chance.randint(0, 1) for _ in range(UNIT * chance.randint(1, 4)))
            expected = sum((tenant, prefix) in present for prefix in prefixes(tokens))
            fresh = len(prefixes(tokens)) - expected
            matched = [p for p in prefixes(tokens) if (tenant, p) in present]
            pinned = sum(not held(tenant, prefix) for prefix in matched)
            if fresh + pinned > cache.allocator.free + cache.tree.evictable:
                continue
            shortage = fresh - cache.allocator.free
            evict(max(0, shortage), but=(tenant, matched[-1] if matched else ()))
            node, _, count = cache.serve(list(tokens), tenant)
            assert count == expected
            holders.append((node, tenant, tokens))
            for prefix in prefixes(tokens):
                present.setdefault((tenant, prefix), 0)
        elif action < 0.9 and holders:
            node, tenant, tokens = holders.pop(chance.randrange(len(holders)))
            cache.release(node)
            for prefix in prefixes(tokens):
                if (tenant, prefix) in present and not held(tenant, prefix):
                    present[tenant, prefix] = clock
        elif action > 0.95:
            count = chance.randint(0, cache.tree.evictable)
            cache.tree.evict(count)
            evict(count)
        cache.check()
        free = sum(not held(tenant, prefix) for tenant, prefix in present)
        assert cache.tree.evictable == free and len(cache.tree) == len(present)
