"""Time of ``Scheduler.plan()`` under load: ``python -m bench.scheduler``.

No model runs. 256 rows decode, 2000 requests of 8 tenants wait, prompts share system prefixes;
each step some requests end and others are admitted. A case runs ``ROUNDS`` times with equal
requests; a plan's time is the thread's own processor time in its fastest round, since other
processes slow single plans down several times. Three cases: a steady mix, all rows busy with
nobody ending, and a KV pool that is too small for the rows that it has.
"""

from __future__ import annotations

import gc
import json
import random
import time
from dataclasses import asdict, dataclass, field

from antiphon_llm.engine.limits import SchedulerLimits
from antiphon_llm.engine.request import Request, State, Timings
from antiphon_llm.engine.scheduler import Scheduler
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.prefix_tree import PrefixTree
from antiphon_llm.messages import Sampling
from antiphon_llm.sampler.row import SamplerRow

ROWS, QUEUED, TENANTS = 256, 2000, 8
STEP_TOKENS, CHUNK, ENTRY_TOKENS = 4096, 2048, 16
PROMPT, OUTPUT, PREFIXES, PREFIX_TOKENS = 512, 256, 16, 256
STEPS, ROUNDS = 2000, 4
_SAMPLER = SamplerRow(Sampling(), choice=0, prompt_ids=[1], end_ids=[], vocabulary=8)


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call, over the steps of a case."""

    case: str
    plan_p50: float
    plan_p99: float
    plan_max: float
    advance_and_settle_p50: float
    rows_mean: float
    admitted: int
    preempted: int


@dataclass
class _Round:
    plans: list[float] = field(default_factory=list)
    rest: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    admitted: int = 0
    preempted: int = 0


class _Load:
    """A scheduler that is kept full."""

    def __init__(self, *, entries: int, output: int) -> None:
        limits = SchedulerLimits(ROWS, STEP_TOKENS, CHUNK, ENTRY_TOKENS, 10 * QUEUED)
        allocator = EntryAllocator(entries)
        tables = BlockTables(
            allocator, rows=ROWS, entry_tokens=ENTRY_TOKENS, context_limit=PROMPT + 4 * STEPS
        )
        self.scheduler = Scheduler(limits, tables, PrefixTree(allocator, fingerprint=b"bench"))
        self._chance = random.Random(0)
        self._prefixes = [self._tokens(PREFIX_TOKENS) for _ in range(PREFIXES)]
        self._output = output
        self._sequence = 0

    def fill(self) -> None:
        """Brings the queue up to its length."""
        while self.scheduler.waiting < QUEUED:
            self._sequence += 1
            prompt = self._chance.choice(self._prefixes) + self._tokens(PROMPT - PREFIX_TOKENS)
            length = self._chance.randint(self._output // 2, self._output * 3 // 2)
            request = Request(
                str(self._sequence), self._sequence, prompt, len(prompt), length, Timings(0.0),
                tenant=f"tenant {self._sequence % TENANTS}", sampler=_SAMPLER,
            )  # fmt: skip
            self.scheduler.enqueue(request)

    def _tokens(self, count: int) -> list[int]:
        return self._chance.choices(range(50_000), k=count)


def measure(case: str, *, entries: int, output: int) -> Timing:
    """Runs one case ``ROUNDS`` times and takes each call's fastest round."""
    rounds = [_run(entries=entries, output=output) for _ in range(ROUNDS)]
    plans = sorted(min(times) for times in zip(*(run.plans for run in rounds), strict=True))
    rest = sorted(min(times) for times in zip(*(run.rest for run in rounds), strict=True))
    first = rounds[0]
    return Timing(
        case, plans[STEPS // 2], plans[STEPS * 99 // 100], plans[-1], rest[STEPS // 2],
        sum(first.rows) / STEPS, first.admitted, first.preempted,
    )  # fmt: skip


def _run(*, entries: int, output: int) -> _Round:
    """Times the calls of the last ``STEPS`` steps, in microseconds."""
    gc.collect()
    load = _Load(entries=entries, output=output)
    scheduler = load.scheduler
    timed = _Round()
    for step in range(-OUTPUT, STEPS):
        load.fill()
        started = time.thread_time_ns()
        plan = scheduler.plan()
        planned = time.thread_time_ns()
        scheduler.advance(plan)
        advanced = time.thread_time_ns()
        for row in plan.rows:
            if row.shape.samples:
                request = row.request
                request.commit(7)
                if len(request.tokens) >= request.length_limit:
                    scheduler.remove(request, publish=True)
                    request.move(State.FINISHED)
        committed = time.thread_time_ns()
        scheduler.settle(plan)
        settled = time.thread_time_ns()
        if step >= 0:
            timed.plans.append((planned - started) / 1e3)
            timed.rest.append((advanced - planned + settled - committed) / 1e3)
            timed.rows.append(len(plan.rows))
            timed.admitted += len(plan.admitted)
    timed.preempted = scheduler.preemptions
    return timed


def measure_all() -> list[Timing]:
    """The three cases."""
    ample = 2 * ROWS * (PROMPT + 2 * OUTPUT) // ENTRY_TOKENS
    endless = PROMPT + 2 * (STEPS + OUTPUT)
    return [
        measure("steady", entries=ample, output=OUTPUT),
        measure("rows full", entries=ROWS * endless // ENTRY_TOKENS, output=2 * endless),
        measure("entries short", entries=ROWS * PROMPT // ENTRY_TOKENS, output=OUTPUT),
    ]


def main() -> None:
    """Prints one JSON line for each case."""
    for timing in measure_all():
        print(json.dumps(asdict(timing)))


if __name__ == "__main__":
    main()
