"""How decode attention is cut into programs: pure arithmetic on host facts.

A decode row reads its whole context with few queries, so one program per (row, key head) would
leave most of a device idle at small batches. The context of each is cut into ``split_count``
parts that run side by side (flash-decoding, Dao et al. 2023); the part that finishes last
joins them.
"""

from __future__ import annotations

import torch

DECODE_TILE = 64
"""Most (query, head) pairs of one key head that the decode kernel takes at once."""

COUNTERS = 1024
"""int32 arrival counters at the head of a workspace, one per (row, key head) that is split."""

SPLIT_TOKENS = 64
"""Fewest keys worth a part of their own."""

MOST_PARTS = 32
"""Parts of a row's context: beyond it joining them costs more than reading longer ones."""

PROGRAMS_PER_PROCESSOR = 4
"""Decode programs that a multiprocessor holds at once."""


CHUNK_QUERIES = 1
"""Queries of a row that stay together where rows are cut into chunks."""


def decode_queries(group: int) -> int:
    """Most queries of a row that the decode kernel serves, for ``group`` heads per key head."""
    return max(1, DECODE_TILE // group)


def live_pairs(max_query: int, group: int) -> int:
    """(query, head) pairs of one key head, rounded up to a power of two."""
    return 1 << (max_query * group - 1).bit_length()


def tile_rows(max_query: int, group: int) -> int:
    """Rows of a decode tile: the pairs, and at least the 16 of a matrix unit."""
    return max(16, live_pairs(max_query, group))


def chunk_count(rows: int, kv_heads: int, max_query: int, processors: int) -> int:
    """Chunks of each row's queries.

    Few rows leave processors idle, and the last part of a context joins as many values as it
    has queries: then queries apart, which find their keys in the L2 cache, are faster. Rows that
    fill the device read their keys once.
    """
    chunks = -(-max_query // CHUNK_QUERIES)
    return chunks if rows * kv_heads * chunks <= processors else 1


def split_count(rows: int, kv_heads: int, max_context: int, processors: int) -> int:
    """Parts of each row's context: as many as run at once, no smaller than useful.

    One program more than fit would run alone at the end, as long as all the others together.
    """
    pairs = rows * kv_heads
    if pairs > COUNTERS:
        return 1
    resident = processors * PROGRAMS_PER_PROCESSOR // pairs
    useful = -(-max_context // SPLIT_TOKENS)
    return max(1, min(resident, useful, MOST_PARTS))


def workspace_elements(
    heads: int, kv_heads: int, head_dim: int, max_query: int, processors: int
) -> int:
    """fp32 elements that any number of rows of this geometry needs at most."""
    parts = processors * PROGRAMS_PER_PROCESSOR + 4
    padded = max(16, 1 << (head_dim - 1).bit_length())
    return COUNTERS + parts * live_pairs(max_query, heads // kv_heads) * (padded + 2)


def new_workspace(
    heads: int, kv_heads: int, head_dim: int, max_query: int, device: torch.device
) -> torch.Tensor:
    """A workspace of ``paged_attention`` with its counters at zero.

    One serves every layer and every batch whose geometry needs no more elements, as long as
    the calls follow each other on one stream.
    """
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    count = workspace_elements(heads, kv_heads, head_dim, max_query, processors)
    return torch.zeros(count, dtype=torch.float32, device=device)
