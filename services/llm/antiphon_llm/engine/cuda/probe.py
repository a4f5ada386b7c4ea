"""Random steps at full width, whose memory is measured before the KV pool is sized."""

from __future__ import annotations

import numpy as np

from antiphon_llm.engine.plan import StepPlan
from antiphon_llm.engine.request import Request, State, Timings
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.messages import Sampling
from antiphon_llm.sampler.row import SamplerRow

from .runner import DeviceRunner

_SAMPLING = Sampling(temperature=1.0, top_k=50, top_p=0.95, max_tokens=1, logprobs=0)


def prompt_tokens(max_rows: int, step_tokens: int, context_limit: int, draft_depth: int = 0) -> int:
    """Tokens of each row's prompt, so that all rows together fill a step."""
    return min(max(1, step_tokens // max_rows), max(1, context_limit - 2 - draft_depth))


def probe_tables(
    *,
    max_rows: int,
    step_tokens: int,
    entry_tokens: int,
    context_limit: int,
    draft_depth: int = 0,
) -> BlockTables:
    """Tables with entries for the probe alone."""
    length = prompt_tokens(max_rows, step_tokens, context_limit, draft_depth) + 2 + draft_depth
    entries = max_rows * -(-length // entry_tokens)
    return BlockTables(
        EntryAllocator(entries),
        rows=max_rows,
        entry_tokens=entry_tokens,
        context_limit=context_limit,
    )


def run_probe(runner: DeviceRunner, tables: BlockTables, vocabulary: int) -> None:
    """A prefill of all rows that fills a step, then decode steps of all rows: plain, and with
    drafts where the runner takes them."""
    options = runner.options
    depth = options.draft_depth
    length = prompt_tokens(options.max_rows, options.step_tokens, tables.context_limit, depth)
    random = np.random.default_rng(0)
    requests = []
    for index in range(options.max_rows):
        tokens = random.integers(0, vocabulary, length).tolist()
        sampler = SamplerRow(
            _SAMPLING, choice=index, prompt_ids=tokens, end_ids=(), vocabulary=vocabulary
        )
        request = Request(str(index), index, tokens, length, 1, Timings(0.0), sampler=sampler)
        request.row = tables.open()
        request.move(State.PREFILLING)
        requests.append(request)
    steps = [(length, ()), (1, ()), *([(1 + depth, (0,) * depth)] if depth else [])]
    for tokens_each, drafts in steps:
        plan = StepPlan()
        for request in requests:
            tables.extend(request.row, request.written + tokens_each)
            plan.add(request, tokens_each, drafts)
        result = runner.collect(runner.launch(plan))
        for row, (drawn, *_) in result.draws:
            row.request.written += 1 if row.drafts else row.shape.tokens
            row.request.tokens.append(max(drawn.token, 0))
            if row.request.state is State.PREFILLING:
                row.request.move(State.DECODING)
