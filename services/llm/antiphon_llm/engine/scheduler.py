"""Which tokens of which requests the next step runs: host arithmetic only.

A step takes the running decode rows, then the running prefills, then admissions, all of one
class: while there is interactive work, no batch row is admitted or stepped. Admission promises
a request the entries of all its known tokens; a decoding request takes one more entry whenever
it crosses into it. Where entries are short, requests are preempted: their full entries go to
the prefix cache, the rest is freed, they return to the front of their queue and later compute
what the cache has lost meanwhile. Waiting requests hold nothing, so there are no holds of
theirs to take first.

Every schedule makes progress: nobody is preempted for a younger request of its class, and the
oldest fits the pool alone.
"""

from __future__ import annotations

from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.prefix_tree import PrefixTree

from .admission import Admission
from .budget import water_fill
from .draft_rows import DraftRows
from .holdings import Holdings
from .limits import KV_HELD_LIMIT, Refusal, SchedulerLimits
from .parking import KvMover, Parking
from .plan import DECODE_ROW, PlannedRow, StepPlan
from .preemption import Victims
from .queues import ClassQueue
from .request import Request, State
from .running import Running


class Scheduler:
    """Queues, running rows and the plan of each step.

    Args:
        tree: the prefix cache; None computes every prompt.
        mover: copies parked requests; None parks nobody.

    Attributes:
        chunk: tokens of one prefill in one step at most.
        row_limit: rows that may run together.
        preemptions: requests that lost their row to another.
        skipped: decode rows that a plan left out for want of an entry.
        cached_tokens: prompt tokens that first admissions found in the prefix cache.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        tables: BlockTables,
        tree: PrefixTree | None = None,
        mover: KvMover | None = None,
    ) -> None:
        self.limits = limits
        self.tables = tables
        self.holdings = Holdings(tables, tree)
        self.admission = Admission(
            self.holdings, tenant_rows_max=limits.tenant_rows_max or limits.max_rows
        )
        self.parking = Parking(self.holdings, mover)
        self.chunk = limits.prefill_chunk
        self.row_limit = limits.max_rows
        self.preemptions = 0
        self.skipped = 0
        self.cached_tokens = 0
        self.draft_rows = DraftRows(limits, self.holdings)
        self._waiting = {cls: ClassQueue(limits.tenant_weights) for cls in (True, False)}
        self._running = Running()
        # Requests that the last plan could not admit: new ones would wait behind them.
        self._left_waiting = {True: 0, False: 0}
        self._number = 0
        self._victims: Victims | None = None

    @property
    def waiting(self) -> int:
        """Requests in the queues."""
        return len(self._waiting[True]) + len(self._waiting[False])

    @property
    def running_count(self) -> int:
        """Requests that hold a row."""
        return len(self._running)

    @property
    def running(self) -> list[Request]:
        """Requests that hold a row, oldest first."""
        return self._running.in_order()

    def counters(self) -> dict[str, int]:
        """What scheduling did otherwise than at once and in full, by name; since boot."""
        tree = self.holdings.tree
        counts = {
            "scheduler: decode row skipped": self.skipped,
            "scheduler: waited for a prefix": self.admission.prefix_waits,
            "scheduler: tenant at its rows": self.admission.tenant_waits,
            "scheduler: parked": self.parking.parked_total,
            "prefix cache: evicted": tree.evictions if tree is not None else 0,
            **self.draft_rows.refused,
        }
        return {name: count for name, count in counts.items() if count}

    def narrow(self, *, prefill_chunk: int, rows: int) -> None:
        """Bounds the work of the following steps; rows that run already stay."""
        self.chunk = prefill_chunk
        self.row_limit = rows

    def refusal(self, interactive: bool) -> Refusal | None:
        """Why a new request of this class cannot be queued now.

        Batch work is refused as long as interactive requests wait; what batch work holds or
        waits for never refuses an interactive request. What only the prefix cache holds is
        as good as free.
        """
        waiting = len(self._waiting[True]) if interactive else self.waiting
        if waiting >= self.limits.queue_limit:
            return Refusal(
                "QUEUE_FULL", self.limits.queue_limit, waiting, "the waiting queue is full"
            )
        left = self._left_waiting[True]
        if not interactive and left:
            return Refusal("QUEUE_FULL", 0, left, "batch work waits for interactive requests")
        if left or (not interactive and self._left_waiting[False]):
            allocator = self.tables.allocator
            held = allocator.used - self.holdings.cached
            if interactive:
                held -= sum(map(self.holdings.private, self._running.of(False)))
            if held >= KV_HELD_LIMIT * allocator.entries:
                share = round(held / allocator.entries, 3)
                return Refusal("KV_FULL", KV_HELD_LIMIT, share, "running requests fill the KV pool")
        return None

    def enqueue(self, request: Request) -> None:
        """Adds a QUEUED request at the end of its tenant's queue."""
        request.length_limit = min(
            request.prompt_length + request.max_tokens, self.tables.context_limit
        )
        self.holdings.name_prefixes(request)
        self._waiting[request.interactive].push(request)

    def next_decodes(self) -> list[Request]:
        """The requests whose decode rows the next plan takes, if there is room."""
        return self._running.decoding[self._serves_interactive()]

    def remove(self, request: Request, publish: bool) -> None:
        """Takes a request out of queue or rows; harmless if it is in none.

        Entries that a launched step may still write are freed when that step settles.
        ``publish`` leaves full entries in the prefix cache.
        """
        self._waiting[request.interactive].discard(request)
        self.parking.drop(request)
        if request.row >= 0:
            self._release(request, publish=publish)

    def requeue(self, request: Request) -> None:
        """Puts a running request back to the front of its queue after a failed step; nothing
        that it wrote is trusted, except what was published before."""
        self._release(request, publish=False)
        self._wait_again(request, State.QUEUED)

    def flush(self, tenant: str | None = None) -> int:
        """Makes cached prefixes unreachable, all or one tenant's; entries that are free now."""
        tree = self.holdings.tree
        return tree.flush(tenant) if tree is not None else 0

    def plan(self) -> StepPlan:
        """The next step: decode rows, running prefills, then admissions.

        Entries for all planned tokens are held when this returns. While a step is in flight
        the plan may be empty although requests are live: its outcome must come first.
        """
        self._number += 1
        self._victims = None
        plan = StepPlan(self._number)
        interactive = self._serves_interactive()
        self._plan_decodes(plan, interactive)
        budget = self._prefill_budget(interactive, plan.tokens)
        unfinished = [
            request for request in self._running.prefilling[interactive] if request.pending
        ]
        budget -= self._plan_prefills(plan, unfinished, budget)
        self._admit(plan, interactive, budget)
        self._plan_prefills(plan, plan.admitted, budget)
        self._left_waiting = {cls: len(queue) for cls, queue in self._waiting.items()}
        return plan

    def advance(self, plan: StepPlan) -> None:
        """Commits the state of a step that has just been launched; outputs follow later.

        While the device runs, it also evicts what the next plan will take.
        """
        number = plan.number
        for row in plan.rows:
            request, shape = row.request, row.shape
            request.written = row.start + shape.tokens
            request.launched = number
            request.ahead += shape.draws
        for row in plan.completed:
            if row.shape.samples:
                self._running.decode(row.request)
        self.holdings.stock()

    def trim(self, row: PlannedRow, drawn: int) -> None:
        """A collected decode row emits ``drawn`` tokens: what its refused drafts wrote counts as
        unwritten, and the entries that only they needed are free again."""
        refused = row.shape.draws - drawn
        if refused and row.current:
            row.request.trim(refused)
            self.holdings.trim(row.request)

    def settle(self, plan: StepPlan, *, computed: bool = True) -> None:
        """The step has been collected and its outputs are committed.

        ``computed`` is False for one that failed on the device: nothing of it is published,
        and its rows must have been taken out before.
        """
        for row in plan.rows:
            request = row.request
            if row.epoch == request.epoch:
                # Behind a trim less is written than the row fed.
                request.settled = min(row.end, request.written)
        for row in plan.completed:
            if row.current:
                self.holdings.publish(row.request)
                self.admission.published(row.request)
        self.holdings.settle(plan.number, publish=computed)

    def check_integrity(self) -> None:
        """Raises unless queues, rows and entries agree."""
        running = self.running
        self.holdings.check_integrity(running)
        self.admission.check_integrity(running)
        rows = {request.row for request in running}
        if len(rows) != len(running) or len(rows) + self.tables.free_rows != len(self.tables.table):
            raise RuntimeError(f"running rows {sorted(rows)} do not match the block tables")
        self._running.check_integrity()
        for interactive, queue in self._waiting.items():
            queue.check_integrity(interactive=interactive)

    def _serves_interactive(self) -> bool:
        """The class of the next step."""
        return bool(self._waiting[True] or self._running.count(True))

    def _plan_decodes(self, plan: StepPlan, interactive: bool) -> None:
        rows, number, holdings = plan.rows, plan.number, self.holdings
        requests = [
            request
            for request in self._running.decoding[interactive]
            if request.written + 1 < request.length_limit  # Else its last token is being drawn.
        ]
        if any(request.drafts for request in requests) and self.draft_rows.plan(
            plan, requests, self.limits.most_tokens(interactive, self.chunk)
        ):
            return
        available = holdings.available
        for request in requests:
            start = request.written
            if request.row < 0:
                continue  # Preempted by an elder just now.
            if start >= request.room:
                if available < 1:
                    roomy = self._make_room(1, request, plan)
                    available = holdings.available
                    if not roomy:
                        self.skipped += 1
                        continue
                holdings.grow(request)
                available -= 1
            request.planned = number
            rows.append(PlannedRow(request, start, DECODE_ROW, request.epoch))
        plan.decode_tokens = plan.decode_rows = len(rows)

    def _prefill_budget(self, interactive: bool, decodes: int) -> int:
        most = self.limits.most_tokens(interactive, self.chunk)
        return most - decodes if interactive else max(most - decodes, self.limits.entry_tokens)

    def _plan_prefills(self, plan: StepPlan, requests: list[Request], budget: int) -> int:
        if not requests:
            return 0
        demands = [min(request.pending, self.chunk) for request in requests]
        shares = water_fill(demands, budget, self.limits.entry_tokens)
        for request, tokens in zip(requests, shares, strict=True):
            if tokens:
                request.planned = plan.number
                plan.add_prefill(request, tokens)
                self.holdings.extend(request, request.written + tokens)
        return sum(shares)

    def _admit(self, plan: StepPlan, interactive: bool, budget: int) -> None:
        """Moves waiting requests of the class in turn to rows; each can run an entry's worth
        of tokens at once. One that finds no room is passed by nobody."""
        unit = self.limits.entry_tokens
        queue = self._waiting[interactive]
        if not queue or budget < unit or not self._may_open(interactive):
            return
        candidates = self.admission.candidates(queue, interactive=interactive)
        for request, match in candidates:
            cached = self._room_to_open(request, match, plan)
            if cached is None:
                return
            queue.charge(request)
            self._open(request, cached, plan)
            budget -= unit
            if budget < unit or not self._may_open(interactive):
                return

    def _room_to_open(self, request: Request, match: tuple[int, int], plan: StepPlan) -> int | None:
        """Makes a row and entries free; the cached entries to open with, None without room."""
        preempted = self.preemptions
        if not self._make_row(request, plan):
            return None
        while True:
            if self.preemptions != preempted:
                # What a victim shared with this request is held by nobody now, and more of
                # it may be cached.
                match = self.holdings.match(request)
                preempted = self.preemptions
            cached, unheld = match
            need = self.tables.entries_for(len(request.tokens)) - cached + unheld
            # One spare entry for each running row keeps an admission from forcing the very
            # next boundary crossing to preempt it again.
            spare = self._running.count(request.interactive)
            if not self._make_room(need + spare, request, plan, batch_only=True):
                return None
            if self.preemptions == preempted:
                return cached

    def _may_open(self, interactive: bool) -> bool:
        """Whether another row of the class can be had, by preempting batch work if need be."""
        own, batch = self._running.count(interactive), self._running.count(False)
        if not interactive:
            return own < min(self.row_limit, self.limits.batch_rows_max or self.row_limit)
        return own < self.row_limit and (self.tables.free_rows > 0 or batch > 0)

    def _open(self, request: Request, cached: int, plan: StepPlan) -> None:
        self.holdings.open(request, cached)
        if not request.planned:
            request.cached_tokens = request.written
            self.cached_tokens += request.written
        if request.parked is not None:
            self.parking.resume(request)
            plan.resumed.append(request)
        self._running.open(request)
        self.admission.opened(request)
        plan.admitted.append(request)

    def _make_row(self, request: Request, plan: StepPlan) -> bool:
        while not self.tables.free_rows or self.running_count >= self.row_limit:
            victim = self._victim(request, plan, batch_only=True)
            if victim is None:
                return False
            self._preempt(victim, plan)
        return True

    def _make_room(
        self, need: int, request: Request, plan: StepPlan, *, batch_only: bool = False
    ) -> bool:
        """Preempts until ``need`` entries can be had; False if no victim is left, or if what
        quarantine gives back soon is enough."""
        holdings = self.holdings
        while need > holdings.available:
            if need <= holdings.available + holdings.quarantined:
                return False
            victim = self._victim(request, plan, batch_only=batch_only)
            if victim is None:
                return False
            self._preempt(victim, plan)
        return True

    def _victim(self, request: Request, plan: StepPlan, *, batch_only: bool) -> Request | None:
        if batch_only and not (request.interactive and self._running.count(False)):
            return None
        if self._victims is None:
            self._victims = Victims(
                self.running, lambda tenant: self.limits.tenant_weights.get(tenant, 1.0)
            )
        return self._victims.next_for(request, plan.number, batch_only=batch_only)

    def _preempt(self, request: Request, plan: StepPlan) -> None:
        parked = self.parking.park(request)
        self._release(request, publish=True)
        self._wait_again(request, State.PARKED if parked else State.QUEUED)
        if parked:
            plan.parked.append(request)
        plan.preempted.append(request)
        self.preemptions += 1

    def _wait_again(self, request: Request, state: State) -> None:
        request.move(state)
        request.preemptions += 1
        self.holdings.name_prefixes(request)
        self._waiting[request.interactive].push(request, front=True)

    def _release(self, request: Request, *, publish: bool) -> None:
        self._running.close(request)
        self.admission.closed(request)
        self.holdings.release(request, publish=publish)
        request.lose_row()
