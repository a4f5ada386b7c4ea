"""Random schedules through the real scheduler over a runner that keeps what it wrote.

A place of the fake pool holds a hash of everything up to it: tenant, adapter and tokens. So a
row that reads an entry of somebody else, or one that was overwritten, draws another token than
the request alone would, and is caught before that. Steps run in the order of their launch and
as late as possible, when they are collected. Drafts are right or wrong by chance; what refused
ones wrote stays in the pool until it is overwritten.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from antiphon_llm.engine.holdings import reads_cache
from antiphon_llm.engine.limits import SchedulerLimits
from antiphon_llm.engine.plan import PlannedRow, StepPlan
from antiphon_llm.engine.request import Request, State
from antiphon_llm.engine.scheduler import Scheduler
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.prefix_tree import PrefixTree

from .scenario import CONTEXT, TENANTS, UNIT, Scenario, accepted, alone, mix, origin, stops


@dataclass
class Flight:
    """A launched step, with the tables as they were then."""

    plan: StepPlan
    tables: list[list[int]]
    inputs: list[list[int]]
    """Tokens of each row; -1 is the last token that the row drew."""

    def writes(self) -> set[int]:
        return {
            held[position // UNIT]
            for row, held in zip(self.plan.rows, self.tables, strict=True)
            for position in range(row.start, row.end)
        }


class FakeRunner:
    """Memory that remembers, and each table row's last draw."""

    def __init__(self, entries: int) -> None:
        self.memory = [-1] * ((entries + 1) * UNIT)
        self.last: dict[int, int] = {}

    def launch(self, plan: StepPlan, tables: BlockTables) -> Flight:
        held, inputs = [], []
        for row in plan.rows:
            request = row.request
            held.append(tables.span(request.row, 0, tables.held(request.row)))
            if row.drafts:
                inputs.append([request.tokens[row.start], *(max(d, 0) for d in row.drafts)])
                continue
            known = request.tokens[row.start : row.end]
            inputs.append(known + [-1] * (row.end - row.start - len(known)))
        self.rows = [row.request.row for row in plan.rows]
        return Flight(plan, held, inputs)

    def run(self, flight: Flight, table_rows: list[int]) -> list[tuple[PlannedRow, list[int]]]:
        """What each sampling row emits."""
        draws = []
        for row, held, inputs, place in zip(
            flight.plan.rows, flight.tables, flight.inputs, table_rows, strict=True
        ):
            request = row.request
            before = (
                self.memory[slot(held, row.start - 1)]
                if row.start
                else origin(request.tenant, request.adapter)
            )
            contents = []
            for position, token in zip(range(row.start, row.end), inputs, strict=True):
                # Nothing was drawn where the step before failed; then nobody reads this row.
                before = mix(before, self.last.get(place, 0) if token < 0 else token)
                self.memory[slot(held, position)] = before
                contents.append(before)
            if row.shape.samples:
                emitted = accepted(contents[-row.shape.draws :], row.drafts)
                self.last[place] = emitted[-1]
                draws.append((row, emitted))
        return draws


class FakeMover:
    """Host memory; a step in flight computes as if it had not been copied from or to."""

    def __init__(self, runner: FakeRunner, entries: int) -> None:
        self.room = entries
        self._runner = runner
        self._parked: dict[int, list[list[int]]] = {}
        self._next = 0

    def park(self, entries: Sequence[int]) -> int:
        require(len(entries) <= self.room, "more is parked than there is room")
        memory = self._runner.memory
        self._next += 1
        self._parked[self._next] = [memory[entry * UNIT : (entry + 1) * UNIT] for entry in entries]
        self.room -= len(entries)
        return self._next

    def resume(self, handle: int, first: int, entries: Sequence[int]) -> None:
        contents = self._parked[handle][first:]
        for entry, copied in zip(entries, contents, strict=True):
            self._runner.memory[entry * UNIT : (entry + 1) * UNIT] = copied
        self.drop(handle)

    def drop(self, handle: int) -> None:
        self.room += len(self._parked.pop(handle))


def slot(held: list[int], position: int) -> int:
    return held[position // UNIT] * UNIT + position % UNIT


class Broken(AssertionError):
    """A schedule broke a rule."""


@dataclass
class Simulation:
    """Drives one scenario to its end and checks every rule after every step."""

    scenario: Scenario
    clock: int = 0
    live: dict[int, Request] = field(default_factory=dict)
    served: dict[int, Request] = field(default_factory=dict)
    flights: deque[tuple[Flight, list[int]]] = field(default_factory=deque)
    steps: int = 0
    drafted: int = 0
    """Drafts that were accepted."""

    def __post_init__(self) -> None:
        scenario = self.scenario
        limits = SchedulerLimits(
            scenario.rows, scenario.step_tokens, scenario.chunk, UNIT, 1000,
            batch_tokens_max=min(scenario.batch_tokens_max, scenario.step_tokens),
            batch_rows_max=min(scenario.batch_rows_max, scenario.rows),
            tenant_rows_max=min(scenario.tenant_rows_max, scenario.rows),
            tenant_weights=dict(scenario.weights),
        )  # fmt: skip
        allocator = EntryAllocator(scenario.entries)
        self.tables = BlockTables(
            allocator, rows=scenario.rows, entry_tokens=UNIT, context_limit=CONTEXT
        )
        self.tree = PrefixTree(allocator, fingerprint=b"m") if scenario.tree else None
        self.runner = FakeRunner(scenario.entries)
        self.mover = FakeMover(self.runner, scenario.parking)
        self.scheduler = Scheduler(limits, self.tables, self.tree, self.mover)
        self.chance = random.Random(scenario.draft_seed)
        work = sum(len(a.prompt) + a.max_tokens for a in scenario.arrivals)
        self.bound = 40 + 6 * work

    def run(self) -> Simulation:
        scenario = self.scenario
        last = max(arrival.at + (arrival.cancel_after or 0) for arrival in scenario.arrivals)
        while self.clock <= last or self.live or self.flights:
            require(self.clock < self.bound, "requests are live and nothing comes of it")
            self.happen()
            self.step()
            self.clock += 1
        tokens = {
            index: tuple(request.tokens) for index, request in self.served.items()
            if request.pooled is None
        }  # fmt: skip
        for index, sequence in tokens.items():
            arrival = self.scenario.arrivals[index]
            expected = alone(arrival.prompt, arrival.max_tokens, arrival.tenant, arrival.adapter)
            require(sequence == expected, f"r{index} drew other tokens than alone")
        self.scheduler.flush()
        self.scheduler.check_integrity()
        require(self.tables.allocator.used == 0, "entries are held by nobody")
        nobody = self.mover.room == scenario.parking and not self.scheduler.parking.count
        require(nobody, "host memory is held by nobody")
        return self

    def happen(self) -> None:
        """Arrivals, cancels and flushes of this tick."""
        for index, arrival in enumerate(self.scenario.arrivals):
            if arrival.at == self.clock:
                request = self.live[index] = arrival.request(index)
                self.scheduler.enqueue(request)
            if arrival.cancel_after is not None:
                due = arrival.at + arrival.cancel_after == self.clock
                if due and index in self.live:
                    self.end(index, publish=False)
        for at, tenant in self.scenario.flushes:
            if at == self.clock:
                self.scheduler.flush(tenant)

    def end(self, index: int, *, publish: bool) -> None:
        request = self.live.pop(index)
        self.scheduler.remove(request, publish=publish)
        request.move(State.FINISHED)
        self.scheduler.remove(request, publish=publish)
        if publish:
            self.served[index] = request

    def propose(self) -> None:
        """Drafts of any length for the next decode rows, unless tokens are in flight; those are
        waited for only now and then."""
        if not self.scenario.drafts:
            return
        while self.flights and self.chance.random() < 0.5:
            self.collect(*self.flights.popleft())
        if self.flights:
            return
        for request in self.scheduler.next_decodes():
            arrival = self.scenario.arrivals[request.sequence]
            known = alone(arrival.prompt, arrival.max_tokens, arrival.tenant, arrival.adapter)
            length = self.chance.randint(0, self.scenario.drafts)
            right = known[len(request.tokens) :][:length]
            request.drafts = [
                token if self.chance.random() < 0.7 else self.chance.randrange(47)
                for token in (*right, *[0] * (length - len(right)))
            ]

    def step(self) -> None:
        self.propose()
        plan = self.scheduler.plan()
        self.check_plan(plan)
        if plan.rows:
            self.steps += 1
            flight = self.runner.launch(plan, self.tables)
            self.flights.append((flight, self.runner.rows))
            self.scheduler.advance(plan)
        elif not self.flights:
            require(not self.live, "requests are live, none can run and nothing is in flight")
        depth = 0 if plan.draft_depth else self.scenario.depth
        while len(self.flights) > depth or (
            self.flights and (not plan.rows or (plan.completed and self.scenario.at_once))
        ):
            self.collect(*self.flights.popleft())
        self.check_state()

    def collect(self, flight: Flight, table_rows: list[int]) -> None:
        plan = flight.plan
        if plan.number in self.scenario.failures:
            for row in reversed(plan.rows):
                if row.current:
                    self.scheduler.requeue(row.request)
            self.scheduler.settle(plan, computed=False)
            return
        self.check_contents(flight, plan.rows, before=True)
        draws = self.runner.run(flight, table_rows)
        self.check_contents(flight, plan.rows, before=False)
        for row, emitted in draws:
            self.scheduler.trim(row, len(emitted))
            self.drafted += len(emitted) - 1
            for token in emitted:
                if row.current:
                    self.commit(row.request, token)
        for row in plan.completed:
            if row.current and row.request.pooled is not None:
                self.end(row.request.sequence, publish=True)
        self.scheduler.settle(plan)

    def commit(self, request: Request, token: int) -> None:
        request.commit(token)
        limit = min(CONTEXT, request.prompt_length + request.max_tokens)
        require(len(request.tokens) <= limit, "a draft went beyond the end")
        if stops(token) or len(request.tokens) >= limit:
            self.end(request.sequence, publish=True)

    def check_contents(self, flight: Flight, rows: list[PlannedRow], *, before: bool) -> None:
        """Every place that a row reads, or has just written, belongs to its own sequence."""
        for row, held in zip(rows, flight.tables, strict=True):
            request = row.request
            if not row.current:
                continue
            expected = origin(request.tenant, request.adapter)
            known = request.tokens[: row.start if before else row.end]
            for position, token in enumerate(known):
                expected = mix(expected, token)
                if self.runner.memory[slot(held, position)] != expected:
                    raise Broken(f"{request.request_id} reads a foreign token at {position}")

    def check_plan(self, plan: StepPlan) -> None:
        scheduler, scenario = self.scheduler, self.scenario
        require(plan.tokens == sum(row.shape.tokens for row in plan.rows), "token count")
        require(plan.tokens <= scenario.step_tokens, "the step's budget is exceeded")
        interactive = any(request.interactive for request in self.live.values())
        planned = {row.request for row in plan.rows}
        require(len(planned) == len(plan.rows), "two rows of one request")
        if not interactive:
            most = max(scenario.batch_tokens_max or scenario.chunk, scenario.rows + UNIT)
            require(plan.tokens <= most, "the bound of a batch step is exceeded")
        if interactive:
            rows_and_new = [*planned, *plan.admitted]
            require(all(r.interactive for r in rows_and_new), "batch runs beside interactive")
        else:
            require(not any(r.interactive for r in plan.preempted), "preempted for batch")
        require(not planned & set(plan.preempted), "a row of the step is preempted")
        prefills = [row.request.state is State.PREFILLING for row in plan.rows]
        require(prefills == sorted(prefills), "a decode row follows a prefill")
        running = scheduler.running
        mine = [r for r in running if r.interactive is interactive]
        batch = [r for r in running if not r.interactive]
        require(len(batch) <= (scenario.batch_rows_max or scenario.rows), "too many batch rows")
        for tenant in TENANTS if scenario.tenant_rows_max else ():
            rows = sum(r.tenant == tenant for r in mine)
            require(rows <= scenario.tenant_rows_max, "a tenant holds too many rows")
        if mine:
            oldest = mine[0]
            ending = oldest.written + 1 >= oldest.length_limit or not oldest.pending
            excused = ending or scheduler.holdings.quarantined > 0
            require(oldest in planned or excused, "the oldest request does not progress")
        for request in plan.admitted:
            cached = request.cached_tokens
            require(cached < len(request.tokens), "nothing is left to compute")
            require(not cached or reads_cache(request), "read without leave")
        for row in plan.rows:
            held = self.tables.held(row.request.row)
            require(held * UNIT >= row.end, "a planned token has no entry")
            require(not row.request.drafts, "a planned row keeps its proposal")
        decodes = plan.rows[: plan.decode_rows]
        require(prefills.count(False) == plan.decode_rows, "the count of decode rows is wrong")
        widths = {row.shape.tokens for row in decodes}
        require(widths <= {1 + plan.draft_depth}, "decode rows of different widths")

    def check_state(self) -> None:
        self.scheduler.check_integrity()
        if not self.flights:
            for request in self.scheduler.running:
                if request.state is State.DECODING:
                    held = self.tables.held(request.row)
                    require(held == self.tables.entries_for(request.written), "drafts keep entries")
        free = self.scheduler.tables.allocator
        shared = set(self.tree.entries()) if self.tree is not None else set()
        for flight, _ in self.flights:
            writes = flight.writes()
            require(not writes & shared, "an entry is shared while a step may write it")
            require(all(free.is_held(entry) for entry in writes), "a step writes a free entry")
            reads = {
                entry for row, held in zip(flight.plan.rows, flight.tables, strict=True)
                if row.current for entry in held
            }  # fmt: skip
            require(all(free.is_held(entry) for entry in reads), "a step reads a free entry")


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


def fails(scenario: Scenario) -> str:
    """How the scenario fails; empty if it does not."""
    try:
        Simulation(scenario).run()
    except (AssertionError, RuntimeError, ValueError, KeyError, IndexError) as failure:
        return f"{type(failure).__name__}: {failure}"
    return ""


def smallest(scenario: Scenario) -> Scenario:
    """The scenario without every arrival that its failure does not need."""
    place = 0
    while place < len(scenario.arrivals) > 1:
        arrivals = scenario.arrivals[:place] + scenario.arrivals[place + 1 :]
        fewer = replace(scenario, arrivals=arrivals)
        if fails(fewer):
            scenario = fewer
        else:
            place += 1
    return scenario
