"""Runs steps on the processor: at once, or one behind another on a thread of their own.

At depth 0 ``launch`` computes and ``collect`` hands over. At depth 1 one compute thread runs
forward and draw while the loop commits the step before and plans the one after; the kernels
release the interpreter lock, so the two run side by side.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from antiphon_core.logs import get_logger
from antiphon_core.memory import resident_bytes

from antiphon_llm.messages import TopLogprobs
from antiphon_llm.models.block import WantedRows
from antiphon_llm.models.programs import recurs
from antiphon_llm.models.workspace import FIXED_TOKENS
from antiphon_llm.sampler.draw import Draw, DrawRow, draw_windows
from antiphon_llm.sampler.logprobs import scored_token
from antiphon_llm.speculation.drafter import Drafter

from .batch import BatchBuilder, StepBatch, wanted_rows
from .emitted import advanced
from .failures import FailureKind, classify
from .memory import discard_pages
from .plan import PlannedRow, StepPlan
from .readout import pool as pool_states
from .runner import ForwardModel, LayerCache, ScoredChunk, StepResult

_log = get_logger(__name__)

_SCORE_TILE = 16
"""Prompt positions that go through the head together when their log-probabilities are read."""
_LOGITS_ROWS = 64
"""Positions with drafts that go through the head together, if no single row has more."""
_BATCH_TENSORS = (
    "input_ids",
    "positions",
    "query_start",
    "context_len",
    "block_table",
    "write_slot",
    "sample_index",
    "adapter_slots",
)


@dataclass(slots=True, eq=False)
class CpuFlight:
    """A launched step with all that computing it needs of the requests."""

    plan: StepPlan
    batch: StepBatch
    table_rows: list[int]
    """Row of the block tables for each sampling row: the request may lose it meanwhile."""
    scored: list[int]
    """For each row that scores its prompt: tokens scored before this step."""
    done: threading.Event = field(default_factory=threading.Event)
    result: StepResult | None = None
    error: BaseException | None = None


class CpuRunner:
    """Owns the step's buffers and the last token of each row; holds no request state.

    Attributes:
        logits_bytes: what ``logits_bytes()`` foresees, as allocated.
        fallbacks: draws that a failure made row by row, by reason.

    Args:
        draft_depth: most drafts of a row and step.
        drafter: told of every step's outcome.
    """

    def __init__(
        self,
        model: ForwardModel,
        views: Sequence[LayerCache],
        builder: BatchBuilder,
        *,
        max_rows: int,
        overlap_depth: int,
        draft_depth: int = 0,
        drafter: Drafter | None = None,
    ) -> None:
        self._drafter = drafter
        self._model = model
        self._views = views
        self._builder = builder
        self._last_tokens = np.zeros(max_rows, dtype=np.int32)
        logits = torch.empty((_logits_rows(max_rows, draft_depth), model.vocab_size))
        self.logits_bytes = logits.nbytes
        self._logits = [logits[:rows] for rows in range(len(logits) + 1)]
        """By row count: a decode step calls no torch operation, not even for a view."""
        self._host_logits = [rows.numpy() for rows in self._logits]
        self.fallbacks: dict[str, int] = {}
        self._fixed_batch = _FixedBatch(max_rows) if overlap_depth else None
        self._thread = _ComputeThread(self._compute) if overlap_depth else None

    def launch(self, plan: StepPlan) -> CpuFlight:
        """See Runner."""
        flight = CpuFlight(
            plan,
            self._builder.build(plan),
            [row.request.row for row in plan.rows if row.shape.samples],
            [len(row.request.scored) for row in plan.rows if row.request.prompt_logprobs >= 0],
        )
        if self._thread is None:
            self._compute(flight)
        else:
            self._thread.submit(flight)
        return flight

    def finish(self, flight: CpuFlight) -> None:
        """See Runner. Steps draw one after another on one thread, and so know all tokens before
        them: nothing waits for this."""

    def collect(self, flight: CpuFlight) -> StepResult:
        """See Runner."""
        flight.done.wait()
        if flight.error is not None:
            raise flight.error
        assert flight.result is not None
        return flight.result

    def sleep(self) -> int:
        """See Runner. The weights stay: they are in the host's memory already."""
        before = resident_bytes()
        for pool in _storages(self._views):
            discard_pages(pool)
        return max(0, before - resident_bytes())

    def wake(self) -> None:
        """See Runner. Pages come back zeroed when they are written."""

    def close(self) -> None:
        """See Runner."""
        if self._thread is not None:
            self._thread.close()

    def _compute(self, flight: CpuFlight) -> None:
        """Computes a step on whichever thread it is; what it raises belongs to ``collect``."""
        try:
            flight.result = self._run(flight)
        except Exception as error:
            flight.error = error
        flight.done.set()

    @torch.inference_mode()
    def _run(self, flight: CpuFlight) -> StepResult:
        """Feeds the plan's tokens and draws where a row samples."""
        plan, batch = flight.plan, flight.batch
        if self._fixed_batch is not None:
            batch = self._settled(batch)
        hidden = self._model.forward(
            batch.input_ids,
            batch.positions,
            batch,
            self._views,
            wanted=self._wanted(plan, batch),
            adapted=batch.adapted,
        )
        result = StepResult()
        scored = iter(flight.scored)
        end = 0
        for row in plan.rows:
            begin, end = end, end + row.shape.tokens
            if row.request.pooled is not None:
                pooled = pool_states(hidden[begin:end], row.request.pooled.readout.pooling)
                result.pooled.append((row, pooled.numpy()))
            elif row.request.prompt_logprobs >= 0:
                result.scored.append(self._score_prompt(row, hidden[begin:end], next(scored)))
        sampling = [row for row in plan.rows if row.shape.samples]
        if sampling:
            draws = self._draw(hidden, batch, sampling)
            for table_row, drawn in zip(flight.table_rows, draws, strict=True):
                self._last_tokens[table_row] = max(drawn[-1].token, 0)
            result.draws = list(zip(sampling, draws, strict=True))
        if self._drafter is not None:
            self._observe(self._drafter, plan, len(batch.input_ids), result)
        return result

    def _wanted(self, plan: StepPlan, batch: StepBatch) -> WantedRows | None:
        """The tokens that are drawn from, where the model can leave the others out."""
        if not self._model.prunes(len(batch.input_ids), len(batch.sample_index)):
            return None
        read = any(row.request.reads_prompt for row in plan.rows)
        return None if read else wanted_rows(plan, batch)

    def _observe(self, drafter: Drafter, plan: StepPlan, tokens: int, result: StepResult) -> None:
        """Shows the drafter the step; a failure there is no failure of the step."""
        hidden = self._model.residual(tokens) if drafter.wants_hidden else None
        taps = self._model.tapped(tokens) if drafter.tap_layers else {}
        try:
            drafter.observe(plan, hidden, taps, result)
        except Exception as error:
            result.drafter_error = error

    def _settled(self, batch: StepBatch) -> StepBatch:
        """The batch with every token known; if its shape recurs, at addresses that never change."""
        assert self._fixed_batch is not None
        if recurs(len(batch.input_ids), len(batch.context_len), batch.max_query):
            batch = self._fixed_batch.copy(batch)
        ids = batch.input_ids.numpy()
        unknown = np.flatnonzero(ids < 0)
        ids[unknown] = self._last_tokens[-1 - ids[unknown]]
        return batch

    def _draw(
        self, hidden: torch.Tensor, batch: StepBatch, rows: Sequence[PlannedRow]
    ) -> list[list[Draw]]:
        """What each row emits; as many positions at once as the logits have room for."""
        if batch.sample_index.shape[0] != hidden.shape[0]:
            hidden = hidden.index_select(0, batch.sample_index)
        emitted: list[list[Draw]] = []
        for begin, end, group in self._groups(rows):
            positions = hidden if end - begin == len(hidden) else hidden[begin:end]
            self._model.head(positions, self._logits[end - begin])
            emitted += self._emit(self._host_logits[end - begin], group)
        return emitted

    def _groups(
        self, rows: Sequence[PlannedRow]
    ) -> Iterator[tuple[int, int, Sequence[PlannedRow]]]:
        """Runs of rows that fit the logits, each with its range of sampled positions."""
        most = len(self._logits) - 1
        begin = end = first = 0
        for place, row in enumerate(rows):
            if end + row.shape.draws - begin > most:
                yield begin, end, rows[first:place]
                begin, first = end, place
            end += row.shape.draws
        yield begin, end, rows[first:]

    def _emit(self, logits: np.ndarray, rows: Sequence[PlannedRow]) -> list[list[Draw]]:
        """Draws rows from their logits, accepts their drafts and moves their samplers on."""
        windows: list[DrawRow] = []
        for row in rows:
            sampler = row.request.sampler
            assert sampler is not None
            # A draw whose request then lost its row was dropped, and is made again now.
            sampler.rewind(row.first_draw - row.request.prompt_length)
            windows.append(
                DrawRow(
                    sampler,
                    row.first_draw,
                    row.drafts,
                    None if row.q is None else row.q.numpy(),
                )
            )
        drawn = self._draw_together(logits, windows)
        return [
            advanced(row, window.sampler, draws)
            for row, window, draws in zip(rows, windows, drawn, strict=True)
        ]

    def _draw_together(self, logits: np.ndarray, windows: Sequence[DrawRow]) -> list[list[Draw]]:
        """Draws all rows; where that fails, each alone, so that one row's fault stays its own."""
        try:
            return draw_windows(logits, windows)
        except Exception as error:
            if classify(error) is not FailureKind.REQUEST:
                raise
            self.fallbacks["draw: row by row"] = self.fallbacks.get("draw: row by row", 0) + 1
            _log.exception("draw_failed", rows=len(windows))
        drawn, end = [], 0
        for window in windows:
            begin, end = end, end + 1 + len(window.drafts)
            drawn.append(_draw_alone(logits[begin:end], window))
        return drawn

    def _score_prompt(self, row: PlannedRow, hidden: torch.Tensor, done: int) -> ScoredChunk:
        """Scores the prompt tokens that this chunk's rows predict and that are not scored yet."""
        request = row.request
        first = max(row.start + 1, done)
        last = min(row.end + 1, request.prompt_length)
        scored: list[TopLogprobs] = []
        for start in range(first, last, _SCORE_TILE):
            end = min(start + _SCORE_TILE, last)
            rows = hidden[start - 1 - row.start : end - 1 - row.start]
            self._model.head(rows, self._logits[end - start])
            logits = self._host_logits[end - start]
            scored.extend(
                scored_token(
                    logits[target - start], request.tokens[target], request.prompt_logprobs
                )
                for target in range(start, end)
            )
        return ScoredChunk(row, first, scored)


def logits_bytes(max_rows: int, vocab_size: int, draft_depth: int = 0) -> int:
    """Bytes of the logits that a runner keeps."""
    return _logits_rows(max_rows, draft_depth) * vocab_size * torch.float32.itemsize


def _logits_rows(max_rows: int, draft_depth: int) -> int:
    width = 1 + draft_depth
    return max(max_rows, _SCORE_TILE, width, min(max_rows * width, _LOGITS_ROWS))


class _FixedBatch:
    """A copy of a batch in memory that never moves: recorded programs hold addresses."""

    def __init__(self, max_rows: int) -> None:
        self._places = max(max_rows, FIXED_TOKENS) + 1
        self._buffers: dict[str, torch.Tensor] = {}
        self._views: dict[tuple[str, int], torch.Tensor] = {}

    def copy(self, batch: StepBatch) -> StepBatch:
        """The batch, in this memory until the next copy."""
        present = (name for name in _BATCH_TENSORS if getattr(batch, name) is not None)
        return replace(batch, **{name: self._copy(name, batch) for name in present})

    def _copy(self, name: str, batch: StepBatch) -> torch.Tensor:
        source: torch.Tensor = getattr(batch, name)
        view = self._views.get((name, len(source)))
        if view is None:
            if name not in self._buffers:
                shape = (self._places, *source.shape[1:])
                self._buffers[name] = torch.zeros(shape, dtype=source.dtype)
            self._views[name, len(source)] = view = self._buffers[name][: len(source)]
        return view.copy_(source)


class _ComputeThread:
    """Runs flights one after another. It is a daemon: a step that hangs cannot hold an exit up."""

    def __init__(self, compute: Callable[[CpuFlight], None]) -> None:
        self._flights: queue.SimpleQueue[CpuFlight | None] = queue.SimpleQueue()
        self._compute = compute
        self._thread = threading.Thread(target=self._serve, name="compute", daemon=True)
        self._thread.start()

    def submit(self, flight: CpuFlight) -> None:
        """Queues a flight; its ``done`` tells when it has been computed."""
        self._flights.put(flight)

    def close(self) -> None:
        """Ends the thread after what is queued; waits a step's time for it."""
        self._flights.put(None)
        self._thread.join(5.0)

    def _serve(self) -> None:
        while (flight := self._flights.get()) is not None:
            self._compute(flight)


def _storages(views: Sequence[LayerCache]) -> list[torch.UntypedStorage]:
    """The storages under the caches, each once: layers are carved from one pool."""
    found = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage()
        for view in views
        for tensor in (view.keys, view.values)
    }
    return list(found.values())


def _draw_alone(logits: np.ndarray, window: DrawRow) -> list[Draw]:
    try:
        return draw_windows(logits, [window])[0]
    except Exception as error:
        if classify(error) is not FailureKind.REQUEST:
            raise
        return [Draw(-1, error=f"the draw failed: {type(error).__name__}: {error}")]
