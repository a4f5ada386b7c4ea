"""Drafting with a smaller model of the same tokenizer.

The draft model has keys and values of its own in fields of the target's pool, at the places of
the target's entries. A draft first catches up, in one ragged forward over the rows (several
where a prompt is longer than a chunk), with all tokens that the draft model has not seen, and
then decodes one token a row at a time. Nothing is computed for requests that are not drafted.

What it guesses beyond the row's entries lies in spare blocks of the row. After the verify step
the cells of the accepted guesses stay: min(n + 1, K) of them where n of K drafts were accepted.
("Accelerating large language model decoding with speculative sampling" and "Fast inference from
transformers via speculative decoding", both 2023.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from antiphon_llm.engine.runner import layer_caches
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.fields import FieldSpec, spare_bytes
from antiphon_llm.kvcache.pool import KvPool

from .cells import CellMarks
from .drafter import Proposal
from .guesses import Guesses
from .inputs import DraftInputs
from .limits import PREFIX, DraftLimits

if TYPE_CHECKING:
    from antiphon_llm.engine.plan import StepPlan
    from antiphon_llm.engine.request import Request
    from antiphon_llm.engine.runner import StepResult
    from antiphon_llm.models.decoder import Decoder


def draft_fields(model: Decoder, limits: DraftLimits) -> list[FieldSpec]:
    """What the draft model adds to an entry of the target's pool."""
    return model.kv_rows.named(PREFIX).fields(
        limits.entry_tokens, model.dtype, spare_units=limits.max_rows * limits.spare_entries
    )


@dataclass(slots=True)
class _Guessed:
    """Tokens that the last draft fed behind the committed ones, and where their cells are."""

    epoch: int
    start: int
    tokens: list[int]
    held: int
    """Positions that the row's entries took then; the rest lies in its spare blocks."""
    entries: list[int]
    """Of the row, from the one with ``start`` on."""


@dataclass(slots=True)
class _Row:
    """One drafted request."""

    place: int
    """In the caller's order."""
    request: Request
    depth: int
    chain: list[int]

    @property
    def last(self) -> int:
        """Position of the last committed token."""
        return len(self.request.tokens) - 1


class ModelDrafter:
    """The Drafter ``model``.

    Attributes:
        counters: what was computed, by name.
    """

    name = "model"
    wants_hidden = False
    tap_layers: tuple[int, ...] = ()

    def __init__(
        self,
        model: Decoder,
        tables: BlockTables,
        pool: KvPool,
        limits: DraftLimits,
        *,
        vocabulary: int,
    ) -> None:
        self._model = model
        self._tables = tables
        self._limits = limits
        self.max_depth = limits.depth
        rows = model.kv_rows.named(PREFIX)
        self._views = layer_caches(rows, pool)
        self._fields = [pool.views[field.name] for field in draft_fields(model, limits)]
        self._first_spare = pool.entries + 1
        self._marks = CellMarks(tables)
        self._on_device = model.device.type != "cpu"
        self._guesses = Guesses(
            distributions=limits.distributions(vocabulary), on_device=self._on_device
        )
        self._unrecorded = 0
        self._inputs = DraftInputs(
            **_input_sizes(limits, tables.width),
            block_tokens=limits.entry_tokens,
            device=model.device,
        )
        self._logits = torch.full((limits.max_rows, vocabulary), -torch.inf, device=model.device)
        self._narrow: torch.Tensor | None = None
        """Where the draft model's head has another width than the target's."""
        if model.vocab_size != vocabulary:
            shape = (limits.max_rows, model.vocab_size)
            self._narrow = torch.empty(shape, device=model.device)
        hidden = (limits.max_rows, model.spec.hidden_size)
        self._hidden = torch.empty(hidden, dtype=model.dtype, device=model.device)
        self._guessed: dict[Request, _Guessed] = {}
        self._cells: dict[Request, tuple[int, int]] = {}
        """Epoch and cells of each request's last draft."""
        self._context_limit = min(model.spec.context_limit, tables.context_limit)
        self.counters = {"draft: caught up": 0, "draft: guessed": 0, "draft: no context left": 0}

    @property
    def fallbacks(self) -> dict[str, int]:
        """Ways taken because a better one was not there, by name: decode steps without a program,
        logits that were drawn from on the host."""
        found = {f"draft {name}": count for name, count in self._model.programs.fallbacks.items()}
        if self._unrecorded:
            found["draft: steps are not recorded"] = self._unrecorded
        return found | self._guesses.fallbacks

    def expects(self, requests: Sequence[Request]) -> list[bool]:
        """See Drafter."""
        return [True] * len(requests)

    @torch.inference_mode()
    def draft(self, requests: Sequence[Request], depth: int) -> Proposal:
        """See Drafter."""
        depth = min(depth, self.max_depth)
        rows = []
        for place, request in enumerate(requests):
            # The guesses' positions must have rotary tables and places in the row.
            room = min(depth, self._context_limit - len(request.tokens))
            if room > 0:
                rows.append(_Row(place, request, room, []))
            else:
                self.counters["draft: no context left"] += 1
        q = self._guesses.distributions(len(requests), depth)
        if rows:
            self._catch_up(rows)
            self._guess(rows, q)
        tokens: list[list[int]] = [[] for _ in requests]
        for row in rows:
            tokens[row.place] = row.chain
        return Proposal(tokens, q)

    def observe(
        self,
        plan: StepPlan,
        hidden: torch.Tensor | None,
        taps: Mapping[int, torch.Tensor],
        result: StepResult,
    ) -> None:
        """See Drafter. Parked cells came back with their entries."""
        if not plan.resumed:
            return
        starts = {id(row.request): row.start for row in plan.rows if row.current}
        for request in plan.resumed:
            epoch, cells = self._cells.get(request, (-1, 0))
            end = min(cells, starts.get(id(request), 0))
            if end and epoch + 1 == request.epoch:
                self._marks.restore(request.row, 0, end)

    def release(self, request: Request) -> None:
        """See Drafter."""
        self._guessed.pop(request, None)
        self._cells.pop(request, None)

    @torch.inference_mode()
    def warmup(self) -> None:
        """Runs one token on the null entry."""
        inputs = self._inputs
        inputs.input_ids[0] = inputs.positions[0] = inputs.write_slot[0] = 0
        inputs.query_start[:2] = 0, 1
        inputs.context_len[0] = 1
        inputs.block_table[0] = 0
        self._forward(1, 1)
        self._head(self._hidden[:1].zero_())

    def predict_bytes(self, *, max_rows: int, entries: int) -> int:
        """See Drafter."""
        context, vocabulary = self._tables.context_limit, self._logits.shape[1]
        return predict_bytes(self._model, self._limits, context, vocabulary)

    def _catch_up(self, rows: Sequence[_Row]) -> None:
        """Feeds what the draft model has not seen, the last committed token at least; leaves
        the hidden states behind the last tokens in ``_hidden``."""
        left = []
        for index, row in enumerate(rows):
            left.append((index, min(self._written(row.request), row.last)))
        while left:
            begin, later = 0, []
            batch: list[tuple[int, int, int]] = []
            for index, start in left:
                count = min(rows[index].last + 1 - start, self._limits.chunk_tokens - begin)
                if count:
                    batch.append((index, start, start + count))
                    begin += count
                if start + count <= rows[index].last:
                    later.append((index, start + count))
            self._feed(rows, batch)
            left = later
        for row in rows:
            # The last token's place may lie in a spare block; all before it are the row's.
            end = min(row.last + 1, self._tables.held(row.request.row) * self._limits.entry_tokens)
            self._marks.mark(row.request.row, min(self._cells_before(row), row.last), end)
            self._cells[row.request] = row.request.epoch, end

    def _cells_before(self, row: _Row) -> int:
        return self._marks.run_from_start(row.request.row, row.last)

    def _feed(self, rows: Sequence[_Row], batch: Sequence[tuple[int, int, int]]) -> None:
        """One ragged forward over positions ``start .. end - 1`` of some rows."""
        inputs, end = self._inputs, 0
        ended, sources = [], []
        for place, (index, start, stop) in enumerate(batch):
            row = rows[index]
            begin, end = end, end + stop - start
            inputs.input_ids[begin:end] = row.request.tokens[start:stop]
            self._place(place, row, start, stop, slice(begin, end))
            if stop == row.last + 1:
                ended.append(index)
                sources.append(end - 1)
        self.counters["draft: caught up"] += end
        hidden = self._forward(end, len(batch))
        if len(ended) == len(hidden):
            self._hidden[ended] = hidden
        elif ended:
            self._hidden[ended] = hidden[sources]

    def _guess(self, rows: Sequence[_Row], q: torch.Tensor | None) -> None:
        """Draws the first draft from ``_hidden``, then feeds and draws one at a time."""
        hidden = self._hidden[: len(rows)]
        going = list(rows)
        while going:
            count = len(going)
            self._head(hidden[:count])
            self._draw(going, q)
            fed = [row for row in going if row.chain[-1] >= 0 and len(row.chain) < row.depth]
            if not fed:
                break
            inputs = self._inputs
            for place, row in enumerate(fed):
                position = row.last + len(row.chain)
                inputs.input_ids[place] = row.chain[-1]
                self._place(place, row, position, position + 1, slice(place, place + 1))
            self.counters["draft: guessed"] += len(fed)
            hidden = self._forward(len(fed), len(fed))
            going = fed
        for row in rows:
            if row.chain[-1] < 0:
                row.chain.pop()
            self._remember(row)

    def _draw(self, rows: Sequence[_Row], q: torch.Tensor | None) -> None:
        samplers, positions = [], []
        for row in rows:
            assert row.request.sampler is not None
            samplers.append(row.request.sampler)
            positions.append(row.last + 1 + len(row.chain))
        chains = [row.chain for row in rows]
        kept = None
        if q is not None:
            kept = [q[row.place, len(row.chain)].numpy() for row in rows]
        logits = self._logits[: len(rows)]
        drawn = self._guesses.draw(logits, samplers, positions, chains, kept)
        for row, token in zip(rows, drawn, strict=True):
            row.chain.append(token)

    def _head(self, hidden: torch.Tensor) -> None:
        """Logits of the target's width: ids that only one of the heads has are never drafted."""
        rows = hidden.shape[0]
        if self._narrow is None:
            self._model.head(hidden, self._logits[:rows])
            return
        narrow = self._model.head(hidden, self._narrow[:rows])
        common = min(narrow.shape[1], self._logits.shape[1])
        self._logits[:rows, :common] = narrow[:, :common]

    def _forward(self, tokens: int, rows: int) -> torch.Tensor:
        self._unrecorded += self._on_device
        step = self._inputs.publish(tokens, rows)
        return self._model.forward(step.input_ids, step.positions, step, self._views)

    def _place(self, place: int, row: _Row, start: int, stop: int, span: slice) -> None:
        """Positions, slots, table and context of a row's tokens ``start .. stop - 1``."""
        inputs, unit = self._inputs, self._limits.entry_tokens
        table_row = row.request.row
        table = inputs.block_table[place]
        held = self._tables.held(table_row)
        width = self._tables.width
        table[:width] = self._tables.table[table_row]
        spare = self._limits.spare_entries
        first = self._first_spare + table_row * spare
        table[held : held + spare] = range(first, first + spare)
        positions = np.arange(start, stop, dtype=np.int64)
        inputs.positions[span] = positions
        inputs.write_slot[span] = table[positions // unit] * unit + positions % unit
        inputs.query_start[place] = span.start
        inputs.query_start[place + 1] = span.stop
        inputs.context_len[place] = stop

    def _written(self, request: Request) -> int:
        """Leading tokens of the request that have cells, guesses that came true among them."""
        guessed = self._guessed.pop(request, None)
        if guessed is not None and guessed.epoch == request.epoch:
            self._keep(request, guessed)
        return self._marks.run_from_start(request.row, len(request.tokens) - 1)

    def _keep(self, request: Request, guessed: _Guessed) -> None:
        """Notes the guesses that were accepted, out of the spare blocks into the entries that
        the row holds there by now."""
        unit = self._limits.entry_tokens
        actual = request.tokens[guessed.start : guessed.start + len(guessed.tokens)]
        matched = 0
        while matched < len(actual) and actual[matched] == guessed.tokens[matched]:
            matched += 1
        end = min(guessed.start + matched, self._tables.held(request.row) * unit)
        first = guessed.start // unit
        entries = self._tables.span(request.row, first, -(-end // unit))
        known = len(guessed.entries)
        if end <= guessed.start or entries[:known] != guessed.entries[: len(entries)]:
            return
        moved = entries[guessed.held // unit - first :]
        if moved:
            spare = self._first_spare + request.row * self._limits.spare_entries
            target = torch.tensor(moved, device=self._model.device)
            for view in self._fields:
                view.index_copy_(0, target, view[spare : spare + len(moved)].clone())
        self._marks.mark(request.row, guessed.start, end)

    def _remember(self, row: _Row) -> None:
        """What was fed from the last committed token on: the last draft was drawn, not fed."""
        request, unit = row.request, self._limits.entry_tokens
        held = self._tables.held(request.row)
        start = row.last
        self._guessed[request] = _Guessed(
            request.epoch,
            start,
            [request.tokens[start], *row.chain[:-1]],
            held * unit,
            self._tables.span(request.row, start // unit, held),
        )


def predict_bytes(model: Decoder, limits: DraftLimits, context_limit: int, vocabulary: int) -> int:
    """Bytes beside weights and the entries' own that a drafter with this model takes."""
    narrow = model.vocab_size if model.vocab_size != vocabulary else 0
    width = -(-context_limit // limits.entry_tokens)
    return (
        DraftInputs.predict_bytes(**_input_sizes(limits, width))
        + limits.max_rows * (vocabulary + narrow) * torch.float32.itemsize
        + limits.distribution_bytes(vocabulary)
        + limits.max_rows * model.spec.hidden_size * model.dtype.itemsize
        + model.workspace.predict_bytes(limits.chunk_tokens)
        + spare_bytes(draft_fields(model, limits))
    )


def _input_sizes(limits: DraftLimits, table_width: int) -> dict[str, int]:
    return {
        "tokens": max(limits.chunk_tokens, limits.max_rows),
        "rows": limits.max_rows,
        "width": table_width + limits.spare_entries,
    }
