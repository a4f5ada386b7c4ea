"""Paged attention against its reference, and the same bits for every chunking."""

from __future__ import annotations

import pytest
import torch
from antiphon_kernels import fallbacks
from antiphon_kernels.paged_attention import paged_attention
from antiphon_kernels.paged_attention import reference as ref
from antiphon_kernels.paged_attention.cases import CASES, Batch, Case, build


@pytest.mark.parametrize("case", CASES, ids=str)
def test_native_equals_reference(isa: str, case: Case) -> None:
    batch = build(case)
    expected = ref.paged_attention(batch.q, batch.k_cache, batch.v_cache, **batch.metadata)
    result = paged_attention(batch.q, batch.k_cache, batch.v_cache, **batch.metadata)
    torch.testing.assert_close(result, expected, rtol=2e-5, atol=2e-6)


def part_of(batch: Batch, begin: int, end: int, context: int) -> torch.Tensor:
    """Queries [begin, end) of a one-row batch, as a step of their own."""
    metadata = batch.metadata | {
        "query_start": torch.tensor([0, end - begin], dtype=torch.int32),
        "context_len": torch.tensor([context - batch.q.shape[0] + end], dtype=torch.int32),
    }
    return paged_attention(batch.q[begin:end], batch.k_cache, batch.v_cache, **metadata)


@pytest.mark.parametrize("window", [0, 300], ids=["global", "window"])
@pytest.mark.parametrize("chunk", [1, 5, 16, 33, 200])
def test_chunks_are_the_whole_prompt_bit_for_bit(
    isa: str, threads: int, window: int, chunk: int
) -> None:
    context = 600
    batch = build(Case(rows=((400, context),), window=window))
    whole = paged_attention(batch.q, batch.k_cache, batch.v_cache, **batch.metadata)
    starts = range(0, 400, chunk) if chunk > 1 else range(0, 400, 37)
    for begin in starts:
        end = min(begin + chunk, 400)
        assert torch.equal(part_of(batch, begin, end, context), whole[begin:end])


def test_a_row_is_the_same_alone_and_with_company(isa: str) -> None:
    rows = ((1, 700), (1, 33), (17, 17), (64, 320))
    batch = build(Case(rows=rows))
    together = paged_attention(batch.q, batch.k_cache, batch.v_cache, **batch.metadata)
    start = batch.metadata["query_start"]
    assert isinstance(start, torch.Tensor)
    for row, (count, context) in enumerate(rows):
        own = slice(int(start[row]), int(start[row + 1]))
        metadata = batch.metadata | {
            "query_start": torch.tensor([0, count], dtype=torch.int32),
            "context_len": torch.tensor([context], dtype=torch.int32),
            "block_table": batch.metadata["block_table"][row : row + 1],
        }
        alone = paged_attention(batch.q[own], batch.k_cache, batch.v_cache, **metadata)
        assert torch.equal(alone, together[own])


def test_queries_may_be_a_view_into_fused_rows(isa: str) -> None:
    case = CASES[2]
    batch = build(case)
    count = batch.q.shape[0]
    fused = torch.zeros(count, (case.heads + 2 * case.kv_heads) * case.head_dim)
    view = fused[:, : case.heads * case.head_dim].view(count, case.heads, case.head_dim)
    view.copy_(batch.q)
    expected = paged_attention(batch.q, batch.k_cache, batch.v_cache, **batch.metadata)
    result = paged_attention(view, batch.k_cache, batch.v_cache, **batch.metadata)
    assert torch.equal(result, expected)


def test_scores_of_any_size_stay_finite(isa: str) -> None:
    batch = build(Case(rows=((3, 80),)))
    batch.q *= 1e4
    result = paged_attention(batch.q, batch.k_cache, batch.v_cache, **batch.metadata)
    expected = ref.paged_attention(batch.q, batch.k_cache, batch.v_cache, **batch.metadata)
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)


def test_a_batch_that_does_not_fit_is_refused(isa: str) -> None:
    batch = build(Case(rows=((4, 40),)))
    short = batch.metadata | {"context_len": torch.tensor([3], dtype=torch.int32)}
    with pytest.raises(ValueError, match="shorter than its queries"):
        paged_attention(batch.q, batch.k_cache, batch.v_cache, **short)
    foreign = batch.metadata | {"block_table": batch.metadata["block_table"] + 1000}
    with pytest.raises(ValueError, match="names a block outside"):
        paged_attention(batch.q, batch.k_cache, batch.v_cache, **foreign)
    with pytest.raises(ValueError, match="9 query heads are no multiple of 2 key heads"):
        paged_attention(batch.q, batch.k_cache[:, :2], batch.v_cache[:, :2], **batch.metadata)


def test_an_odd_head_size_runs_the_reference_and_is_counted(isa: str) -> None:
    batch = build(Case(rows=((5, 9),), heads=2, kv_heads=2, head_dim=20))
    before = fallbacks.get("paged_attention: head_dim 20", 0)
    paged_attention(batch.q, batch.k_cache, batch.v_cache, **batch.metadata)
    assert fallbacks["paged_attention: head_dim 20"] == before + 1
