"""Runs steps on a device: one graph launch for the decode rows, eager prefill after it.

The last token drawn for each row of the block tables stays on the device, so that a step can
be launched before the host has read the tokens of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from antiphon_llm.engine.batch import StepBatch
from antiphon_llm.engine.plan import PlannedRow, StepPlan
from antiphon_llm.engine.runner import LayerCache, StepResult
from antiphon_llm.engine.uploads import StepUploads
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.models.block import AttentionMeta, WantedRows
from antiphon_llm.sampler.device import DeviceSampler, SettingsMirror, Unfinished

from .decode_path import DecodeMeta, DecodePath
from .device import Device
from .graphs import DecodeGraphs
from .prefill_path import PrefillPath
from .prompt_outputs import PromptOutputs
from .readback import Readback
from .sleep import SleepingMemory
from .tables import DeviceTables

_READBACK_BYTES = 1 << 16


class DeviceModel(Protocol):
    """What the runner needs of a built model."""

    @property
    def vocab_size(self) -> int:
        """Width V of the head."""
        ...

    @property
    def fixed_tokens(self) -> int:
        """Steps of up to so many tokens run in memory that never moves."""
        ...

    @property
    def matrices(self) -> list[torch.Tensor]:
        """Weights that a sleep takes off the device."""
        ...

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        meta: AttentionMeta,
        views: Sequence[LayerCache],
        drawn: torch.Tensor | None = None,
        wanted: WantedRows | None = None,
    ) -> torch.Tensor:
        """Final hidden states (N, H), or those (R, H) of the wanted tokens alone; ids
        ``-1 - r`` stand for ``drawn[r]``."""
        ...

    def prunes(self, tokens: int, wanted: int) -> bool:
        """Whether a step of so many tokens may name its wanted ones."""
        ...

    def head(self, hidden: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """fp32 logits (R, V) of hidden rows (R, H), written to ``out``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """How a runner runs; sizes in rows and tokens."""

    max_rows: int
    step_tokens: int
    overlap_depth: int = 1
    upload_mode: str = "packed"
    graphs: bool = True
    graph_rows_max: int = 0
    """0 is max_rows."""
    debug: bool = False
    """Checks before each replay that nothing a recording reads has moved."""


@dataclass(slots=True, eq=False)
class DeviceFlight:
    """A launched step and where its results arrive."""

    plan: StepPlan
    sampling: list[PlannedRow]
    readback: Readback
    prompt: PromptOutputs
    outcome: np.ndarray | None = None
    """int32 (2, R): tokens and faults."""
    unfinished: Unfinished | None = None
    scored: np.ndarray | None = None


@dataclass(slots=True)
class _Slot:
    """Host memory of one step that can be in flight."""

    readback: Readback
    settings: SettingsMirror


class DeviceRunner:
    """The Runner of an accelerator, and with a HostDevice of this machine's processor.

    Attributes:
        graphs: the recorded decode steps and what ran of them.
    """

    def __init__(
        self,
        device: Device,
        model: DeviceModel,
        views: Sequence[LayerCache],
        tables: BlockTables,
        options: RunnerOptions,
    ) -> None:
        rows, slots = options.max_rows, options.overlap_depth + 1
        recorded = min(options.graph_rows_max or rows, rows)
        if options.graphs and recorded > model.fixed_tokens:
            raise ValueError(
                f"graphs of {recorded} rows need a model whose memory is fixed for as many "
                f"tokens, not {model.fixed_tokens}"
            )
        self._device = device
        self._model = model
        self._views = views
        self.options = options
        self._asleep: SleepingMemory | None = None
        self._draws = {"draw: with prompts": 0, "draw: adjusted or scored": 0}
        on = device.device
        self._last_tokens = torch.zeros(rows + 1, dtype=torch.int32, device=on)
        self._logits = torch.zeros((rows, model.vocab_size), dtype=torch.float32, device=on)
        self._sample_row = torch.full((rows,), rows, dtype=torch.int64, device=on)
        self._sampler = DeviceSampler(rows=rows, slots=rows, vocabulary=model.vocab_size, device=on)
        self._tables = DeviceTables(tables, on, step_tokens=options.step_tokens)
        self._decode = DecodePath(tables, self._tables, device=on)
        self._prefill = PrefillPath(
            tables, self._tables, step_tokens=options.step_tokens, device=on
        )
        self._uploads = StepUploads(device, slots=slots, mode=options.upload_mode)
        self._decode_uploads = self._uploads.group(
            "decode",
            {
                **self._decode.targets,
                **self._tables.targets,
                "sample_row": self._sample_row,
                "settings": self._sampler.settings.buffer,
            },
        )
        self._prefill_uploads = self._uploads.group("prefill", self._prefill.targets)
        self._table_uploads = self._uploads.group("tables", self._tables.whole_targets)
        self._slots = [
            _Slot(Readback(device, _READBACK_BYTES), self._sampler.mirror()) for _ in range(slots)
        ]
        self.graphs = DecodeGraphs(
            device,
            rows_max=recorded,
            enabled=options.graphs,
            debug=options.debug,
        )

    @property
    def counters(self) -> dict[str, int]:
        """What the optional paths did, by outcome."""
        grown = sum(slot.readback.grown for slot in self._slots)
        return {
            **self.graphs.counters,
            **self._tables.counters,
            **self._draws,
            "readback: grown": grown,
        }

    @torch.inference_mode()
    def record_graphs(self) -> None:
        """Records the ladder on placeholder rows: all padding, over the null entry."""
        self._uploads.open()
        self._decode.prepare((), rows=self.options.max_rows, uploads=self._decode_uploads)
        self._decode_uploads.publish()
        self._prefill_uploads.publish()
        self._uploads.seal()
        self._device.synchronize()
        self.graphs.record(
            lambda rows: self._decode_work(self._decode.views(rows)),
            lambda rows: self._recorded_tensors(self._decode.views(rows)),
        )
        self._device.synchronize()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> DeviceFlight:
        """See Runner."""
        slot = self._slots[self._uploads.open()]
        try:
            return self._launch(plan, slot)
        finally:
            # A failed step gives its slot back as well: what it enqueued has been marked.
            self._uploads.seal()

    def finish(self, flight: DeviceFlight) -> None:
        """See Runner. No draw waits for committed tokens."""

    def collect(self, flight: DeviceFlight) -> StepResult:
        """See Runner."""
        flight.readback.wait()
        result = StepResult()
        if flight.outcome is not None:
            draws = self._sampler.draws(flight.outcome, flight.unfinished, flight.scored)
            result.draws = [
                (row, [drawn]) for row, drawn in zip(flight.sampling, draws, strict=True)
            ]
        flight.prompt.collect(result)
        return result

    def close(self) -> None:
        """See Runner."""
        self._device.synchronize()
        self.graphs.release()

    def sleep(self) -> int:
        """Gives weights and KV pool back to the device; the bytes. No step may be in flight.

        Keys and values are lost: the caller has ended all requests and flushed the prefix
        cache. Graphs hold addresses, and are dropped.
        """
        self.close()
        if self._asleep is None:
            self._asleep = SleepingMemory(self._model.matrices, (view.keys for view in self._views))
            self._asleep.release()
        return self._asleep.bytes_released

    def wake(self) -> None:
        """Undoes :meth:`sleep` and records the graphs again.

        Raises torch.OutOfMemoryError, and stays asleep, when the memory is not there.
        """
        if self._asleep is not None:
            self._asleep.restore()
            self._asleep = None
            self.record_graphs()

    def _launch(self, plan: StepPlan, slot: _Slot) -> DeviceFlight:
        decoding = plan.rows[: plan.decode_rows]
        prefilling = plan.rows[plan.decode_rows :]
        sampling = [row for row in plan.rows if row.shape.samples]
        slot.readback.begin()
        flight = DeviceFlight(plan, sampling, slot.readback, PromptOutputs())
        if sampling:
            flight.unfinished = self._sampler.fill(slot.settings, sampling)
            settings = slot.settings.settings.buffer.numpy()
            self._decode_uploads.take("settings", len(settings))[:] = settings
        meta, batch = self._publish(decoding, prefilling, sampling)
        if meta is not None:
            self.graphs.run(
                meta.rows,
                len(decoding),
                self._decode_work(meta),
                lambda: self._recorded_tensors(meta),
            )
        if batch is not None:
            self._run_prefill(batch, prefilling, len(decoding), flight)
        if sampling:
            self._finish_draws(flight, redraw=batch is not None)
        slot.readback.seal()
        return flight

    def _publish(
        self,
        decoding: Sequence[PlannedRow],
        prefilling: Sequence[PlannedRow],
        sampling: Sequence[PlannedRow],
    ) -> tuple[DecodeMeta | None, StepBatch | None]:
        """Stages and enqueues the step's metadata."""
        uploads = self._decode_uploads
        self._tables.prepare(
            (row.request.row for row in (*decoding, *prefilling)),
            uploads=uploads,
            whole_uploads=self._table_uploads,
        )
        meta = batch = None
        if decoding:
            rows = self.graphs.route(len(decoding))
            meta = self._decode.prepare(decoding, rows=rows, uploads=uploads)
        if prefilling:
            batch = self._prefill.prepare(prefilling, uploads=self._prefill_uploads)
            owners = [row.request.row for row in sampling]
            uploads.take("sample_row", len(owners))[:] = owners
        uploads.publish()
        self._prefill_uploads.publish()
        self._table_uploads.publish()
        self._tables.publish()
        return meta, batch

    def _decode_work(self, meta: DecodeMeta) -> Callable[[], None]:
        """A decode step from prepared metadata to the last-token table, without the host."""
        tokens = self._sampler.outcome[0, : meta.rows]
        logits = self._logits[: meta.rows]

        def work() -> None:
            torch.index_select(self._tables.tensor, 0, meta.table_row, out=meta.block_table)
            hidden = self._model.forward(
                meta.input_ids, meta.positions, meta, self._views, self._last_tokens
            )
            self._model.head(hidden, logits)
            self._sampler.draw(logits)
            self._last_tokens.index_copy_(0, meta.table_row, tokens)

        return work

    def _recorded_tensors(self, meta: DecodeMeta) -> Mapping[str, torch.Tensor]:
        """Whatever a recording of these rows reads or writes beside weights and workspace."""
        caches = {
            f"{index}.{side}": getattr(view, side)
            for index, view in enumerate(self._views)
            for side in ("keys", "values")
        }
        return {
            **meta.tensors(),
            **caches,
            "tables": self._tables.tensor,
            "last_tokens": self._last_tokens,
            "logits": self._logits,
            "settings": self._sampler.settings.buffer,
            "outcome": self._sampler.outcome,
        }

    def _run_prefill(
        self,
        batch: StepBatch,
        rows: Sequence[PlannedRow],
        decode_rows: int,
        flight: DeviceFlight,
    ) -> None:
        """The prefill rows' forward; logits of those that complete follow the decode rows'."""
        self._prefill.gather(batch)
        sampled = batch.sample_index.shape[0]
        tokens = batch.input_ids.shape[0]
        read = any(row.request.reads_prompt for row in rows)
        pruned = not read and self._model.prunes(tokens, sampled)
        hidden = self._model.forward(
            batch.input_ids,
            batch.positions,
            batch,
            self._views,
            wanted=self._prefill.wanted(batch) if pruned else None,
        )
        if not pruned:
            flight.prompt.enqueue(rows, hidden, self._model, flight.readback)
            hidden = hidden.index_select(0, batch.sample_index)
        if sampled:
            self._model.head(hidden, self._logits[decode_rows : decode_rows + sampled])

    def _finish_draws(self, flight: DeviceFlight, *, redraw: bool) -> None:
        """Draws what the decode step did not, and enqueues the copy to the host.

        With prompts in the step all rows are drawn at once, the decode rows a second time:
        a draw depends on its own row's key and position alone.
        """
        count = len(flight.sampling)
        logits = self._logits[:count]
        if redraw:
            self._draws["draw: with prompts"] += 1
            self._sampler.draw(logits)
        if flight.unfinished is not None:
            self._draws["draw: adjusted or scored"] += 1
            scored = self._sampler.finish(logits, flight.unfinished)
            if scored is not None:
                flight.scored = flight.readback.copy(scored)
        if redraw or flight.unfinished is not None:
            owners = self._sample_row[:count] if redraw else self._decode.views(count).table_row
            self._last_tokens.index_copy_(0, owners, self._sampler.outcome[0, :count])
        flight.outcome = flight.readback.copy(self._sampler.outcome)[:, :count]
