"""Drafting with a head that reads the target's hidden states.

The head's cell of position q is made of the token there and the target's features of position
q - 1, so it depends on nothing but the tokens up to q: it lies at q's own place of the entries,
and whoever shares the entry shares the cell. Position 0 has none. ``observe`` fills the cells of
all tokens that a step fed, which are known by then, prompts' pieces included, and keeps the
features of the last position of each entry beside its cells: the next cell, and the first draft,
are made of them, also where a cached prefix ends or a parked request goes on.

A draft writes into spare places of the row only. Its cells are made of the head's own output and
are replaced when the target has fed the accepted tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from antiphon_llm.engine.runner import layer_caches
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.fields import FieldSpec, spare_bytes
from antiphon_llm.kvcache.pool import KvPool

from .cells import CellMarks
from .drafter import Proposal
from .guesses import Guesses
from .head import HiddenHead
from .inputs import DraftInputs
from .limits import PREFIX, DraftLimits

if TYPE_CHECKING:
    from antiphon_llm.engine.plan import PlannedRow, StepPlan
    from antiphon_llm.engine.request import Request
    from antiphon_llm.engine.runner import StepResult

FEATURES = f"{PREFIX}features"


def head_fields(head: HiddenHead, limits: DraftLimits) -> list[FieldSpec]:
    """What a head adds to an entry of the target's pool."""
    spare = -(-limits.max_rows * limits.depth // limits.entry_tokens)
    return [
        *head.kv_rows.named(PREFIX).fields(limits.entry_tokens, head.dtype, spare_units=spare),
        FieldSpec(FEATURES, 1, (head.width,), head.dtype),
    ]


class _Stored(NamedTuple):
    write_slot: torch.Tensor


@dataclass(slots=True)
class _Cells:
    """Cells to fill in one step, as columns, and features to keep."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    """Rotary ones: of the features."""
    slots: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    """Row of the step's features, 0 where an entry's kept ones are read instead."""
    read: dict[int, int] = field(default_factory=dict)
    """Such a cell's place to its entry."""
    kept: dict[int, int] = field(default_factory=dict)
    """Entry to the row of the features that it keeps."""


@dataclass(slots=True)
class _Row:
    """One drafted request."""

    place: int
    """In the caller's order."""
    request: Request
    depth: int
    chain: list[int] = field(default_factory=list)

    @property
    def last(self) -> int:
        """Position of the last committed token."""
        return len(self.request.tokens) - 1

    @property
    def going(self) -> bool:
        """Whether another draft is to be drawn."""
        return len(self.chain) < self.depth and (not self.chain or self.chain[-1] >= 0)


class HiddenDrafter:
    """The Drafters ``mtp`` and ``eagle3``, by their head.

    Attributes:
        counters: what could not be drafted, by name.
    """

    wants_hidden = True

    def __init__(
        self,
        head: HiddenHead,
        tables: BlockTables,
        pool: KvPool,
        limits: DraftLimits,
        *,
        vocabulary: int,
    ) -> None:
        self._head = head
        self._tables = tables
        self._unit = tables.entry_tokens
        self._limits = limits
        self.name = head.name
        self.tap_layers = head.tap_layers
        self.max_depth = limits.depth
        (self._view,) = layer_caches(head.kv_rows.named(PREFIX), pool)
        self._kept = pool.views[FEATURES].flatten(0, 1)
        self._first_spare = (pool.entries + 1) * self._unit
        self._marks = CellMarks(tables)
        self._on_device = head.device.type != "cpu"
        self._guesses = Guesses(
            distributions=limits.distributions(vocabulary), on_device=self._on_device
        )
        self._unrecorded = 0
        sizes = _input_sizes(limits, tables.context_limit)
        self._inputs = DraftInputs(**sizes, block_tokens=1, device=head.device)
        self._logits = torch.empty((limits.max_rows, vocabulary), device=head.device)
        self._runs: dict[Request, tuple[int, int, int]] = {}
        """Epoch of each request, and where its run of cells begins and ends."""
        self._drawn: dict[Request, tuple[int, int]] = {}
        """Position and id of each request's last token, which the host may not have read."""
        self.counters = {"draft: no context left": 0, "draft: hidden state not seen": 0}

    @property
    def fallbacks(self) -> dict[str, int]:
        """Ways taken because a better one was not there, by name."""
        found = self._guesses.fallbacks
        if self._unrecorded:
            found["draft: steps are not recorded"] = self._unrecorded
        return found

    def expects(self, requests: Sequence[Request]) -> list[bool]:
        """See Drafter."""
        return [True] * len(requests)

    @torch.inference_mode()
    def draft(self, requests: Sequence[Request], depth: int) -> Proposal:
        """See Drafter."""
        depth = min(depth, self.max_depth)
        rows = []
        for place, request in enumerate(requests):
            last = len(request.tokens) - 1
            room = min(depth, self._tables.context_limit - last - 1)
            if room <= 0:
                self.counters["draft: no context left"] += 1
            elif last != request.written or not self._marks.reaches(request.row, last - 1):
                self.counters["draft: hidden state not seen"] += 1
            else:
                rows.append(_Row(place, request, room))
        q = self._guesses.distributions(len(requests), depth)
        if rows:
            self._chain(rows, q)
        tokens: list[list[int]] = [[] for _ in requests]
        for row in rows:
            tokens[row.place] = [token for token in row.chain if token >= 0]
        return Proposal(tokens, q)

    @torch.inference_mode()
    def observe(
        self,
        plan: StepPlan,
        hidden: torch.Tensor | None,
        taps: Mapping[int, torch.Tensor],
        result: StepResult,
    ) -> None:
        """See Drafter. Fills the cells of the tokens that the step fed and keeps."""
        assert hidden is not None
        self._restore(plan)
        drawn = {id(row): draws for row, draws in result.draws}
        cells, marks = _Cells(), []
        begin = 0
        for row in plan.rows:
            first, begin = begin, begin + row.shape.tokens
            if not row.current or row.request.sampler is None:
                continue
            draws = drawn.get(id(row), [])
            count = len(draws) if row.drafts else row.shape.tokens
            marks.append(self._collect(cells, row, first, count))
            if draws:
                self._drawn[row.request] = row.first_draw + len(draws) - 1, draws[-1].token
        if marks:
            self._fill(cells, self._head.features(hidden, taps))
        for request, start, end, run in marks:
            self._marks.mark(request.row, start, end, first=run)
            self._runs[request] = request.epoch, self._marks.run_before(request.row, end), end

    def release(self, request: Request) -> None:
        """See Drafter."""
        self._runs.pop(request, None)
        self._drawn.pop(request, None)

    @torch.inference_mode()
    def warmup(self) -> None:
        """Drafts one token in the spare places."""
        inputs = self._inputs
        slot = self._first_spare
        inputs.input_ids[0] = inputs.positions[0] = 0
        inputs.write_slot[0] = inputs.block_table[0, 0] = slot
        inputs.query_start[:2] = 0, 1
        inputs.context_len[0] = 1
        self._step(1, self._kept[:1], columns=1)

    def predict_bytes(self, *, max_rows: int, entries: int) -> int:
        """See Drafter."""
        context, vocabulary = self._tables.context_limit, self._logits.shape[1]
        return predict_bytes(self._head, self._limits, context, vocabulary)

    def _restore(self, plan: StepPlan) -> None:
        """Parked cells came back with their entries."""
        if not plan.resumed:
            return
        starts = {id(row.request): row.start for row in plan.rows if row.current}
        for request in plan.resumed:
            epoch, first, end = self._runs.get(request, (-1, 0, 0))
            end = min(end, starts.get(id(request), 0))
            if first < end and epoch + 1 == request.epoch:
                self._marks.restore(request.row, first, end)

    def _collect(
        self, cells: _Cells, row: PlannedRow, first: int, count: int
    ) -> tuple[Request, int, int, int]:
        """Adds the cells of the row's first ``count`` tokens, whose features begin at row
        ``first`` of the step's; returns what to mark."""
        request, start, end = row.request, row.start, row.start + count
        table, unit = self._tables.table[request.row], self._unit
        run = start
        if not start or not self._marks.reaches(request.row, start - 1):
            # The features before the first token were not seen, or there are none.
            run = min(start + 1, end)
        ids = self._fed(row, count)
        positions = np.arange(run, end)
        slots = table[positions // unit].astype(np.int64) * unit + positions % unit
        cells.ids += ids[run - start :]
        cells.positions += (positions - 1).tolist()
        cells.slots += slots.tolist()
        if run == start:
            cells.read[len(cells.sources)] = int(table[(start - 1) // unit])
            cells.sources.append(0)
        cells.sources += range(first + max(run - start, 1) - 1, first + count - 1)
        for place in range(start // unit, -(-end // unit)):
            last = min(end, (place + 1) * unit) - 1
            cells.kept[int(table[place])] = first + last - start
        return request, start, end, run

    def _fed(self, row: PlannedRow, count: int) -> list[int]:
        """The row's first ``count`` tokens."""
        request, pieces = row.request, row.shape.tokens - len(row.drafts)
        ids = [*request.tokens[row.start : row.start + pieces], *row.drafts]
        if len(ids) < row.shape.tokens:
            # A step launched ahead of its commit feeds the token that the one before drew.
            position, token = self._drawn[request]
            if position != row.start:
                raise RuntimeError(f"token {row.start} of {request.request_id} is not known")
            ids.insert(0, token)
        return ids[:count]

    def _fill(self, cells: _Cells, features: torch.Tensor) -> None:
        """Computes the cells; keeps features only after those of earlier steps were read."""
        inputs = features.index_select(0, self._index(cells.sources))
        if cells.read:
            kept = self._kept[self._index(cells.read.values())]
            inputs.index_copy_(0, self._index(cells.read), kept)
        on = self._head.device
        ids = torch.tensor(cells.ids, dtype=torch.int32, device=on)
        positions = torch.tensor(cells.positions, dtype=torch.int32, device=on)
        slots = self._index(cells.slots)
        for start in range(0, len(cells.ids), self._head.tokens):
            part = slice(start, start + self._head.tokens)
            self._head.store(
                ids[part], inputs[part], positions[part], _Stored(slots[part]), self._view
            )
        newest = features.index_select(0, self._index(cells.kept.values()))
        self._kept.index_copy_(0, self._index(cells.kept), newest)

    def _chain(self, rows: Sequence[_Row], q: torch.Tensor | None) -> None:
        """Draws up to the deepest row's drafts. A row that is done idles in its place."""
        inputs = self._inputs
        columns = 1 + max(self._tabulate(place, row) for place, row in enumerate(rows))
        frontier = [
            int(self._tables.table[r.request.row, (r.last - 1) // self._unit]) for r in rows
        ]
        features = self._kept[self._index(frontier)]
        step = 0
        while any(row.going for row in rows):
            for place, row in enumerate(rows):
                if row.going:
                    fed = row.chain[-1] if row.chain else row.request.tokens[-1]
                    inputs.input_ids[place] = fed
                    inputs.positions[place] = row.last - 1 + step
                    inputs.write_slot[place] = self._spare(row) + step
                    inputs.context_len[place] += 1
            features = self._step(len(rows), features, columns=0 if step else columns)
            self._draw([(place, row) for place, row in enumerate(rows) if row.going], q)
            step += 1

    def _tabulate(self, place: int, row: _Row) -> int:
        """Fills a row's places of cells, then the spare ones that the draft takes; returns the
        number of columns."""
        inputs, unit = self._inputs, self._unit
        first = self._marks.run_before(row.request.row, row.last)
        positions = np.arange(first, row.last)
        table = inputs.block_table[place]
        entries = self._tables.table[row.request.row]
        cells, depth = len(positions), self._limits.depth
        table[:cells] = entries[positions // unit] * unit + positions % unit
        spare = self._spare(row)
        table[cells : cells + depth] = range(spare, spare + depth)
        inputs.context_len[place] = cells
        inputs.query_start[place : place + 2] = place, place + 1
        return cells + depth

    def _index(self, places: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(places), dtype=torch.int64, device=self._head.device)

    def _spare(self, row: _Row) -> int:
        return self._first_spare + row.request.row * self._limits.depth

    def _draw(self, going: Sequence[tuple[int, _Row]], q: torch.Tensor | None) -> None:
        samplers, kept = [], []
        for _, row in going:
            assert row.request.sampler is not None
            samplers.append(row.request.sampler)
            if q is not None:
                kept.append(q[row.place, len(row.chain)].numpy())
        logits = self._logits[: 1 + going[-1][0]]
        if len(going) < len(logits):
            logits = logits[[place for place, _ in going]]
        drawn = self._guesses.draw(
            logits,
            samplers,
            [row.last + 1 + len(row.chain) for _, row in going],
            [row.chain for _, row in going],
            kept if q is not None else None,
        )
        for (_, row), token in zip(going, drawn, strict=True):
            row.chain.append(token)

    def _step(self, rows: int, features: torch.Tensor, *, columns: int) -> torch.Tensor:
        self._unrecorded += self._on_device
        step = self._inputs.publish(rows, rows, columns)
        return self._head.step(
            step.input_ids, features, step.positions, step, self._view, self._logits[:rows]
        )


def predict_bytes(
    head: HiddenHead, limits: DraftLimits, context_limit: int, vocabulary: int
) -> int:
    """Bytes beside weights and the entries' own that a drafter with this head takes."""
    return (
        DraftInputs.predict_bytes(**_input_sizes(limits, context_limit))
        + limits.max_rows * vocabulary * torch.float32.itemsize
        + limits.distribution_bytes(vocabulary)
        + head.work_bytes
        + spare_bytes(head_fields(head, limits))
    )


def _input_sizes(limits: DraftLimits, context_limit: int) -> dict[str, int]:
    """Tables of single places: a row attends to its cells, wherever its run of them begins."""
    return {
        "tokens": limits.max_rows,
        "rows": limits.max_rows,
        "width": context_limit + limits.depth,
    }
