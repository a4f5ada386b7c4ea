"""Requests, schedulers and steps without a runner, for the tests of single rules."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon_llm.engine.limits import SchedulerLimits
from antiphon_llm.engine.parking import KvMover
from antiphon_llm.engine.plan import StepPlan
from antiphon_llm.engine.request import Request, State, Timings
from antiphon_llm.engine.scheduler import Scheduler
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.prefix_tree import PrefixTree
from antiphon_llm.messages import Sampling
from antiphon_llm.sampler.row import SamplerRow

SAMPLER = SamplerRow(Sampling(), choice=0, prompt_ids=[1], end_ids=[], vocabulary=8)


def make_request(
    sequence: int, prompt: int | Sequence[int], output: int = 4, *, interactive: bool = True,
    tenant: str = "", cache: bool = True,
) -> Request:  # fmt: skip
    """A prompt given by its length is unlike every other."""
    tokens = [sequence * 1000 + place for place in range(prompt)] if isinstance(prompt, int) \
        else list(prompt)  # fmt: skip
    return Request(
        f"r{sequence}", sequence, tokens, len(tokens), output, Timings(0.0),
        interactive=interactive, tenant=tenant, cache=cache, sampler=SAMPLER,
    )  # fmt: skip


def make_scheduler(
    *, entries: int = 64, context_limit: int = 64, max_rows: int = 4, step_tokens: int = 16,
    prefill_chunk: int = 8, entry_tokens: int = 4, queue_limit: int = 1000, tree: bool = True,
    mover: KvMover | None = None, **limits: object,
) -> Scheduler:  # fmt: skip
    bounds = SchedulerLimits(
        max_rows, step_tokens, prefill_chunk, entry_tokens, queue_limit, **limits
    )
    allocator = EntryAllocator(entries)
    tables = BlockTables(
        allocator, rows=max_rows, entry_tokens=entry_tokens, context_limit=context_limit
    )
    cache = PrefixTree(allocator, fingerprint=b"model") if tree else None
    return Scheduler(bounds, tables, cache, mover)


def commit(scheduler: Scheduler, plan: StepPlan, *, token: int = 1) -> None:
    """What the loop does with a launched step, in which every sampling row draws ``token``."""
    for row in plan.rows:
        request = row.request
        if row.shape.samples and row.current:
            request.commit(token)
            if request.outputs >= request.max_tokens:
                end(scheduler, request)
    scheduler.settle(plan)
    scheduler.check_integrity()


def end(scheduler: Scheduler, request: Request, *, publish: bool = True) -> None:
    scheduler.remove(request, publish=publish)
    request.move(State.FINISHED)


def step(scheduler: Scheduler) -> StepPlan:
    """One step without overlap."""
    plan = scheduler.plan()
    scheduler.advance(plan)
    commit(scheduler, plan)
    return plan


def launch(scheduler: Scheduler) -> StepPlan:
    """A step in flight."""
    plan = scheduler.plan()
    scheduler.advance(plan)
    return plan


def numbers(requests: Sequence[Request]) -> list[int]:
    return [request.sequence for request in requests]


def planned(plan: StepPlan) -> dict[int, int]:
    """Tokens of each request's row."""
    return {row.request.sequence: row.shape.tokens for row in plan.rows}
