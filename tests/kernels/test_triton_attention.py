"""The device's paged attention against its fp32 reference, over NaN-poisoned pages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from antiphon_kernels.paged_attention import launcher, split
from antiphon_kernels.paged_attention import reference as ref
from antiphon_kernels.paged_attention.cases import Batch, Case, build

TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 4e-6},
    torch.float16: {"rtol": 4e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 2e-2, "atol": 1e-2},
}

DECODE = (
    Case(rows=((1, 1),)),
    Case(rows=((1, 700), (1, 33), (1, 512), (1, 513))),
    Case(rows=((1, 300), (1, 17)), heads=4, kv_heads=1, head_dim=256, window=128),
    Case(rows=((3, 50), (3, 3)), heads=4, kv_heads=2, head_dim=80, window=7, softcap=20.0),
    Case(rows=((2, 90),), heads=6, kv_heads=2, head_dim=96, block_tokens=1),
    Case(rows=((5, 260), (5, 1030)), heads=8, kv_heads=1, head_dim=128, block_tokens=32),
    Case(rows=((4, 70), (0, 5), (1, 9)), heads=2, kv_heads=2, head_dim=20),
)

PREFILL = (
    Case(rows=((70, 70),), heads=4, kv_heads=2),
    Case(rows=((1, 40), (17, 17), (64, 200), (0, 5), (33, 34)), heads=3, kv_heads=1),
    Case(rows=((70, 300),), heads=2, kv_heads=1, head_dim=256, window=100),
    Case(rows=((3, 50), (40, 40)), heads=4, kv_heads=2, head_dim=80, window=7, softcap=20.0),
    Case(rows=((130, 140), (2, 30)), heads=2, kv_heads=1, head_dim=128, block_tokens=32),
    Case(rows=((65, 129),), heads=2, kv_heads=2, head_dim=8, block_tokens=1),
)


def launch(
    batch: Batch, device: torch.device, dtype: torch.dtype, max_query: int, **options: Any
) -> torch.Tensor:
    """Runs the launcher on a batch of CPU tensors moved to the device."""
    tensors = [t.to(device, dtype) for t in (batch.q, batch.k_cache, batch.v_cache)]
    arguments = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in (batch.metadata | options).items()
    }
    defaults = {"sinks": None, "max_context": None, "workspace": None, "out": None}
    result = launcher.paged_attention(*tensors, max_query=max_query, **(defaults | arguments))
    return result.cpu()


def expected(batch: Batch, dtype: torch.dtype, **options: Any) -> torch.Tensor:
    """The fp32 reference on inputs rounded to the dtype."""
    rounded = [t.to(dtype).float() for t in (batch.q, batch.k_cache, batch.v_cache)]
    return ref.paged_attention(*rounded, **batch.metadata, **options)


def most_queries(case: Case) -> int:
    return max(count for count, _ in case.rows)


@pytest.mark.parametrize("case", DECODE, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_decode(device: torch.device, case: Case, dtype: torch.dtype) -> None:
    batch = build(case)
    result = launch(batch, device, dtype, most_queries(case))
    torch.testing.assert_close(result.float(), expected(batch, dtype), **TOLERANCE[dtype])


@pytest.mark.parametrize("case", PREFILL, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_prefill(device: torch.device, case: Case, dtype: torch.dtype) -> None:
    batch = build(case)
    result = launch(batch, device, dtype, max_query=1000)
    torch.testing.assert_close(result.float(), expected(batch, dtype), **TOLERANCE[dtype])


TILED = (
    Case(rows=((1, 40), (17, 17), (64, 200), (0, 5), (33, 34)), heads=3, kv_heads=1),
    Case(rows=((40, 40), (96, 96)), heads=4, kv_heads=2, head_dim=80, softcap=20.0),
    Case(rows=((33, 140), (2, 30)), heads=2, kv_heads=1, head_dim=128, block_tokens=64),
    Case(rows=((65, 129),), heads=2, kv_heads=2, head_dim=16, block_tokens=1),
    Case(rows=((70, 200), (9, 90), (64, 64)), heads=2, kv_heads=1, window=40),
)


@pytest.mark.parametrize("case", TILED, ids=str)
def test_prefill_of_many_tiles_with_sinks(device: torch.device, case: Case) -> None:
    batch = build(case)
    sinks = torch.linspace(-2.0, 2.0, case.heads)
    shape = launcher.Shape(32, 32, 4, 2)
    dtype = torch.float32
    result = launch(batch, device, dtype, max_query=1000, shape=shape, sinks=sinks)
    torch.testing.assert_close(result, expected(batch, dtype, sinks=sinks), **TOLERANCE[dtype])


@pytest.mark.parametrize("max_context", [300, 4096], ids=["short", "long"])
@pytest.mark.parametrize("window", [0, 100], ids=["whole", "window"])
def test_prefill_in_the_tiles_of_half_precision(
    device: torch.device, max_context: int, window: int
) -> None:
    rows = ((130, 140), (2, 30), (1, 300), (64, 257))
    batch = build(Case(rows=rows, heads=2, kv_heads=1, head_dim=128, window=window))
    dtype = torch.bfloat16
    result = launch(batch, device, dtype, max_query=1000, max_context=max_context)
    torch.testing.assert_close(result.float(), expected(batch, dtype), **TOLERANCE[dtype])


@pytest.mark.parametrize("max_query", [3, 1000], ids=["decode", "prefill"])
def test_half_precision(device: torch.device, max_query: int) -> None:
    batch = build(Case(rows=((3, 40), (1, 20)), heads=4, kv_heads=2))
    result = launch(batch, device, torch.float16, max_query)
    torch.testing.assert_close(
        result.float(), expected(batch, torch.float16), **TOLERANCE[torch.float16]
    )


@pytest.mark.parametrize("max_query", [3, 1000], ids=["decode", "prefill"])
def test_sinks_take_weight_and_give_no_value(device: torch.device, max_query: int) -> None:
    batch = build(Case(rows=((3, 40), (1, 1)), heads=4, kv_heads=2))
    sinks = torch.tensor([0.0, 3.0, -50.0, 12.0])
    result = launch(batch, device, torch.float32, max_query, sinks=sinks)
    torch.testing.assert_close(
        result, expected(batch, torch.float32, sinks=sinks), **TOLERANCE[torch.float32]
    )


def test_scores_of_any_size_stay_finite(device: torch.device) -> None:
    batch = build(Case(rows=((1, 400),)))
    batch.q *= 1e4
    for max_query in (1, 1000):
        result = launch(batch, device, torch.float32, max_query)
        torch.testing.assert_close(result, expected(batch, torch.float32), rtol=2e-3, atol=2e-3)


def test_a_row_is_the_same_alone_and_with_company_at_one_split(device: torch.device) -> None:
    rows = ((1, 700), (1, 33), (1, 320))
    batch = build(Case(rows=rows))
    processors = launcher.processors(device)
    together = launch(batch, device, torch.float32, 1)
    splits = split.split_count(3, 3, batch.metadata["block_table"].shape[1] * 16, processors)
    for row in range(len(rows)):
        parts = {
            "query_start": torch.tensor([0, 1, 1, 1], dtype=torch.int32),
            "context_len": batch.metadata["context_len"].roll(-row),
            "block_table": batch.metadata["block_table"].roll(-row, 0),
        }
        assert splits > 1
        alone = Batch(batch.q.roll(-row, 0), batch.k_cache, batch.v_cache, batch.metadata | parts)
        result = launch(alone, device, torch.float32, 1)
        assert torch.equal(result[0], together[row])


def test_decode_rows_and_prefill_rows_are_two_calls_over_one_q(device: torch.device) -> None:
    case = Case(rows=((1, 90), (1, 20), (70, 100), (5, 5)), heads=4, kv_heads=2)
    batch = build(case)
    out = torch.full(batch.q.shape, 7.0, device=device)
    meta = batch.metadata
    for rows, max_query in ((slice(0, 2), 1), (slice(2, 4), 70)):
        part = meta | {
            "query_start": meta["query_start"][rows.start : rows.stop + 1],
            "context_len": meta["context_len"][rows],
            "block_table": meta["block_table"][rows],
        }
        own = Batch(batch.q, batch.k_cache, batch.v_cache, part)
        before = out.cpu().clone()
        launch(own, device, torch.float32, max_query, out=out)
        written = (out.cpu() != before).flatten(1).any(1).nonzero().flatten().tolist()
        assert written == list(range(2) if rows.start == 0 else range(2, 77))
    torch.testing.assert_close(
        out.cpu(), expected(batch, torch.float32), **TOLERANCE[torch.float32]
    )


def test_padding_rows_leave_live_rows_alone(device: torch.device) -> None:
    batch = build(Case(rows=((1, 300), (1, 20))))
    alone = launch(batch, device, torch.float32, 1, max_context=512)
    meta, pad = batch.metadata, 3
    batch.k_cache[:16], batch.v_cache[:16] = 0.0, 0.0
    padded = Batch(
        torch.cat((batch.q, torch.ones(pad, *batch.q.shape[1:]))),
        batch.k_cache,
        batch.v_cache,
        meta
        | {
            "query_start": torch.arange(6, dtype=torch.int32),
            "context_len": torch.cat((meta["context_len"], torch.ones(pad, dtype=torch.int32))),
            "block_table": torch.nn.functional.pad(meta["block_table"], (0, 0, 0, pad)),
        },
    )
    result = launch(padded, device, torch.float32, 1, max_context=512)
    assert not result.isnan().any()
    torch.testing.assert_close(result[:2], alone, **TOLERANCE[torch.float32])
    assert not result[2:].any()


def test_a_workspace_serves_calls_of_any_size_and_is_left_clean(device: torch.device) -> None:
    count = split.workspace_elements(9, 3, 64, 4, launcher.processors(device))
    workspace = torch.full((count,), float("nan"), device=device)
    workspace[: split.COUNTERS] = 0.0
    for rows in (((1, 700),), ((1, 30), (1, 900)), ((4, 300), (2, 7))):
        batch = build(Case(rows=rows))
        result = launch(batch, device, torch.float32, rows[0][0], workspace=workspace)
        torch.testing.assert_close(
            result, expected(batch, torch.float32), **TOLERANCE[torch.float32]
        )
        assert not workspace[: split.COUNTERS].view(torch.int32).any()
    with pytest.raises(ValueError, match="a workspace of 5 elements"):
        launch(batch, device, torch.float32, 4, workspace=workspace[:5])


def test_queries_may_be_a_view_into_fused_rows(device: torch.device) -> None:
    for case in (DECODE[1], PREFILL[0]):
        batch = build(case)
        count = batch.q.shape[0]
        fused = torch.randn(count, case.heads + 2 * case.kv_heads, case.head_dim)
        expected_rows = launch(batch, device, torch.float32, most_queries(case))
        view = fused[:, : case.heads]
        view.copy_(batch.q)
        viewed = Batch(view, batch.k_cache, batch.v_cache, batch.metadata)
        tensors = fused.to(device)[:, : case.heads]
        assert not tensors.is_contiguous() or count == 1
        result = launch(viewed, device, torch.float32, most_queries(case))
        assert torch.equal(result, expected_rows)


@pytest.mark.parametrize(
    ("rows", "kv_heads", "context", "processors", "splits"),
    [
        (1, 8, 640, 132, 10),
        (1, 8, 40960, 132, 32),
        (8, 8, 4096, 132, 8),
        (64, 8, 4096, 132, 1),
        (256, 8, 640, 132, 1),
        (1, 8, 1, 132, 1),
    ],
)
def test_split_count(rows: int, kv_heads: int, context: int, processors: int, splits: int) -> None:
    assert split.split_count(rows, kv_heads, context, processors) == splits


def test_no_batch_outgrows_a_workspace() -> None:
    for processors in (8, 132, 148):
        bound = split.workspace_elements(32, 8, 128, 1, processors)
        for rows in range(1, 300):
            splits = split.split_count(rows, 8, 131072, processors)
            pairs = rows * 8
            assert splits == 1 or pairs <= split.COUNTERS
            used = pairs * splits * 4 * 130 if splits > 1 else 0
            assert split.COUNTERS + used <= bound
