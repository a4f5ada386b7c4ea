"""Which tokens of which requests the next step runs: host arithmetic only.

Room for keys and values is decided here and taken at the end of ``plan``, so a row never
fails for want of it in the middle of a step. A prefilling request has been promised the
entries of all its known tokens; a decoding request takes one more entry whenever it crosses
into it, and where none is free the newest request is preempted: its entries are freed, it
returns to the front of its queue and later recomputes what it had. The oldest interactive
request (the oldest batch request when there are none) can preempt all others and fits the
pool alone, so every schedule makes progress.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from antiphon_llm.kvcache.block_table import BlockTables

from .budget import water_fill
from .plan import StepPlan
from .request import Request, State


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of a step and of the queue."""

    max_rows: int
    step_tokens: int
    prefill_chunk: int
    entry_tokens: int
    queue_limit: int
    batch_rows_max: int = 0
    """Rows that batch requests may hold together; 0 is max_rows."""
    tenant_rows_max: int = 0
    """Rows that one tenant may hold; 0 is max_rows."""
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    """Share of a tenant's admissions within its class; 1 where not named."""

    def __post_init__(self) -> None:
        for name in ("max_rows", "prefill_chunk", "entry_tokens", "queue_limit"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.step_tokens < self.max_rows + self.entry_tokens:
            raise ValueError(
                f"step_tokens {self.step_tokens} must be at least max_rows + entry_tokens = "
                f"{self.max_rows + self.entry_tokens}, or prefills would never advance"
            )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the door is shut: an ErrorReason name without prefix, the limit and what was seen."""

    reason: str
    limit: float
    observed: float
    message: str

    def __str__(self) -> str:
        return f"{self.message}: limit {self.limit:g}, observed {self.observed:g}"


class Scheduler:
    """Queues, running rows and the plan of each step."""

    def __init__(self, limits: SchedulerLimits, tables: BlockTables) -> None:
        self.limits = limits
        self.tables = tables
        self.running: list[Request] = []
        self.preemptions = 0
        self._waiting: dict[bool, OrderedDict[str, Request]] = {
            True: OrderedDict(),
            False: OrderedDict(),
        }
        self._promised = 0
        self._number = 0
        self._quarantine: dict[int, list[int]] = {}
        self._launched: dict[Request, int] = {}
        self._interactive_held_back = False

    @property
    def waiting(self) -> int:
        """Requests in the queues."""
        return len(self._waiting[True]) + len(self._waiting[False])

    @property
    def promised(self) -> int:
        """Entries that the last plan's rows and running prefills may still have taken."""
        return self._promised

    def refusal(self, interactive: bool) -> Refusal | None:
        """Why a new request of this class cannot be queued now.

        A backlog of batch work never refuses an interactive request; batch work is refused
        as long as interactive requests could not be admitted.
        """
        depth = len(self._waiting[True]) if interactive else self.waiting
        if depth >= self.limits.queue_limit:
            limit = self.limits.queue_limit
            return Refusal("QUEUE_FULL", limit, depth, "the waiting queue is full")
        if not interactive and self._interactive_held_back:
            waiting = len(self._waiting[True])
            return Refusal("QUEUE_FULL", 0, waiting, "batch work waits for interactive requests")
        return None

    def enqueue(self, request: Request) -> None:
        """Adds a QUEUED request at the end of its class's queue."""
        self._waiting[request.interactive][request.request_id] = request

    def remove(self, request: Request, publish: bool) -> None:
        """Takes a request out of queue or rows; harmless if it is in none.

        Entries that a launched step may still write are freed when that step settles.
        ``publish`` leaves full entries in the prefix cache.
        """
        self._waiting[request.interactive].pop(request.request_id, None)
        if request.row >= 0:
            self._release(request)

    def plan(self) -> StepPlan:
        """The next step: decode rows, running prefills, then admissions.

        Entries for all planned tokens are held when this returns. While a step is in flight
        the plan may be empty although requests are live: its outcome must come first.
        """
        self._number += 1
        plan = StepPlan(self._number)
        self._promised = sum(self._outstanding(request) for request in self.running)
        interactive = bool(self._waiting[True]) or any(r.interactive for r in self.running)
        self._plan_decodes(plan, interactive)
        budget = self.limits.step_tokens - plan.tokens
        prefills = [
            request
            for request in self.running
            if request.state is State.PREFILLING
            and request.interactive is interactive
            and request.pending
        ]
        budget -= self._plan_prefills(plan, prefills, budget)
        self._admit(plan, interactive, budget)
        self._plan_prefills(plan, plan.admitted, budget)
        self._interactive_held_back = bool(self._waiting[True])
        for row in plan.rows:
            self.tables.extend(row.request.row, row.end)
        return plan

    def advance(self, plan: StepPlan) -> None:
        """Commits the state of a step that has just been launched; outputs follow later."""
        for row in plan.rows:
            request = row.request
            request.written = row.end
            self._launched[request] = plan.number
            if row.shape.samples:
                request.ahead += 1
                if request.state is State.PREFILLING:
                    request.move(State.DECODING)

    def settle(self, plan: StepPlan) -> None:
        """The step has been collected and its outputs are committed."""
        for row in plan.rows:
            if row.current:
                row.request.settled = row.end
        self.tables.allocator.give_back(self._quarantine.pop(plan.number, ()))

    def flush(self, tenant: str | None = None) -> None:
        """Makes cached prefixes unreachable: all, or one tenant's."""

    def check_integrity(self) -> None:
        """Raises unless queues, rows and entries agree."""
        self.tables.check_integrity(e for held in self._quarantine.values() for e in held)
        rows = sorted(request.row for request in self.running)
        if len(set(rows)) != len(rows) or len(rows) + self.tables.free_rows != len(
            self.tables.table
        ):
            raise RuntimeError(f"running rows {rows} do not match the block tables")
        for queue in self._waiting.values():
            for request in queue.values():
                if request.state is not State.QUEUED or request.row >= 0 or request.written:
                    raise RuntimeError(f"{request.request_id} is queued as {request.state}")

    def _plan_decodes(self, plan: StepPlan, interactive: bool) -> None:
        for request in list(self.running):
            if request.state is not State.DECODING or request.interactive is not interactive:
                continue
            if request.written + 1 >= self._most_tokens(request):
                continue  # Its last token is being drawn.
            need = self.tables.need(request.row, request.written + 1)
            if self._make_room(need, request, plan):
                self._promised += need
                plan.add(request, 1)

    def _plan_prefills(self, plan: StepPlan, requests: list[Request], budget: int) -> int:
        chunk = self.limits.prefill_chunk
        demands = [min(request.pending, chunk) for request in requests]
        shares = water_fill(demands, budget, self.limits.entry_tokens)
        for request, tokens in zip(requests, shares, strict=True):
            if tokens:
                plan.add(request, tokens)
        return sum(shares)

    def _admit(self, plan: StepPlan, interactive: bool, budget: int) -> None:
        """Moves queued requests of the class in turn to rows, first come first served."""
        queue = self._waiting[interactive]
        while queue and (len(plan.admitted) + 1) * self.limits.entry_tokens <= budget:
            request = next(iter(queue.values()))
            need = self.tables.entries_for(len(request.tokens))
            # One spare entry for each running row keeps an admission from forcing the very
            # next boundary crossing to preempt it again.
            spare = len(self.running)
            if not self._make_row(request, plan) or not self._make_room(
                need + spare, request, plan, batch_only=True
            ):
                return
            del queue[request.request_id]
            request.row = self.tables.open()
            request.move(State.PREFILLING)
            bisect.insort(self.running, request, key=_age)
            self._promised += need
            plan.admitted.append(request)

    def _make_row(self, request: Request, plan: StepPlan) -> bool:
        if self.tables.free_rows:
            return True
        victim = self._victim(request, plan, batch_only=True)
        if victim is not None:
            self._preempt(victim)
        return self.tables.free_rows > 0

    def _make_room(
        self, need: int, request: Request, plan: StepPlan, *, batch_only: bool = False
    ) -> bool:
        """Preempts until ``need`` entries are unpromised; False if no victim is left."""
        while need > self.tables.allocator.free - self._promised:
            victim = self._victim(request, plan, batch_only=batch_only)
            if victim is None:
                return False
            self._promised -= self._outstanding(victim)
            self._preempt(victim)
        return True

    def _victim(self, request: Request, plan: StepPlan, *, batch_only: bool) -> Request | None:
        """Batch before interactive, then the newest; never one of this step's rows, nor an
        interactive request for a batch one."""
        planned = {row.request for row in plan.rows} | set(plan.admitted)
        classes = [False] if batch_only or not request.interactive else [False, True]
        if batch_only and not request.interactive:
            return None
        for interactive in classes:
            for victim in reversed(self.running):
                if (
                    victim.interactive is interactive
                    and victim is not request
                    and victim not in planned
                ):
                    return victim
        return None

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.move(State.QUEUED)
        request.preemptions += 1
        self.preemptions += 1
        queue = self._waiting[request.interactive]
        queue[request.request_id] = request
        queue.move_to_end(request.request_id, last=False)

    def _release(self, request: Request) -> None:
        self.running.remove(request)
        held = self.tables.detach(request.row)
        unit = self.limits.entry_tokens
        last = self._launched.pop(request, 0)
        first = request.settled // unit if request.settled < request.written else len(held)
        self._quarantine.setdefault(last, []).extend(held[first:])
        self.tables.allocator.give_back(held[:first])
        request.lose_row()
        if request.pooled is not None:
            request.pooled.total = None

    def _most_tokens(self, request: Request) -> int:
        """Length at which the request ends at the latest."""
        return min(request.prompt_length + request.max_tokens, self.tables.context_limit)

    def _outstanding(self, request: Request) -> int:
        """Entries that a prefilling request was promised and has not taken."""
        if request.state is not State.PREFILLING:
            return 0
        return self.tables.need(request.row, len(request.tokens))


def _age(request: Request) -> int:
    return request.sequence
