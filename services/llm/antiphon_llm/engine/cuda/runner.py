"""Runs steps on a device: one graph launch for the decode rows, and the prefill rows after it.

The last token drawn for each row of the block tables stays on the device, so that a step can
be launched before the host has read the tokens of the one before. A step with drafts is read
before the next is planned, whose input the host then knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from antiphon_llm.engine.plan import PlannedRow, StepPlan
from antiphon_llm.engine.runner import LayerCache, StepResult
from antiphon_llm.engine.uploads import StepUploads
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.speculation.drafter import Drafter

from .contract import DeviceModel, RunnerOptions
from .decode_path import DecodeMeta, DecodePath, active_adapters
from .device import Device
from .draws import DrawnStep, StepDraws
from .graphs import DecodeGraphs, DecodeShape, adapter_buckets
from .observation import Observation
from .prefill_graphs import PrefillGraphs
from .prefill_steps import PrefillSteps, PreparedPrefill
from .prompt_outputs import PromptOutputs
from .readback import Readback
from .sleep import SleepingMemory
from .tables import DeviceTables

_READBACK_BYTES = 1 << 16


@dataclass(slots=True, eq=False)
class DeviceFlight:
    """A launched step and where its results arrive."""

    plan: StepPlan
    shape: DecodeShape
    """Of its decode rows, as they run."""
    readback: Readback
    prompt: PromptOutputs
    drawn: DrawnStep | None = None
    observation: Observation | None = None
    error: Exception | None = None
    """What ``finish`` failed with."""


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
        drafter: Drafter | None = None,
        drafter_weights: Sequence[torch.Tensor] = (),
    ) -> None:
        rows, slots = options.max_rows, options.overlap_depth + 1
        width = 1 + options.draft_depth
        recorded = min(options.graph_rows_max or rows, rows)
        if options.graphs and recorded * width > model.fixed_tokens:
            raise ValueError(
                f"graphs of {recorded} rows of {width} tokens need a model whose memory is fixed "
                f"for as many tokens, not {model.fixed_tokens}"
            )
        self._device = device
        self._model = model
        self._views = views
        self.options = options
        self._asleep: SleepingMemory | None = None
        self._drafter = drafter
        self._drafter_weights = drafter_weights
        self._observed = drafter is not None and (drafter.wants_hidden or bool(drafter.tap_layers))
        on = device.device
        self._draws = StepDraws(
            device, rows=rows, width=width, vocabulary=model.vocab_size, slots=slots
        )
        self._sample_row = torch.full((rows,), rows, dtype=torch.int64, device=on)
        self._tables = DeviceTables(tables, on, step_tokens=options.step_tokens)
        buckets = adapter_buckets(options.adapter_slots)
        self._decode = DecodePath(
            tables, self._tables, device=on, max_width=width, adapters=buckets[-1]
        )
        self._uploads = StepUploads(device, slots=slots, mode=options.upload_mode)
        self._decode_uploads = self._uploads.group(
            "decode",
            {
                **self._decode.targets,
                **self._tables.targets,
                "sample_row": self._sample_row,
                **self._draws.targets,
            },
        )
        self._prefill = PrefillSteps(
            device, model, views, tables, self._tables, self._uploads, options
        )
        self._table_uploads = self._uploads.group("tables", self._tables.whole_targets)
        self._readbacks = [Readback(device, _READBACK_BYTES) for _ in range(slots)]
        self.graphs = DecodeGraphs(
            device,
            rows_max=recorded,
            enabled=options.graphs,
            debug=options.debug,
            widths=(1, width),
            adapter_slots=options.adapter_slots,
        )

    @property
    def prefill_graphs(self) -> PrefillGraphs:
        """The recorded prefill steps and what ran of them."""
        return self._prefill.graphs

    @property
    def graphs_refused(self) -> dict[str, str]:
        """Steps without a recording that should have one, and why."""
        recordings = (self.graphs.recordings, self.prefill_graphs.recordings)
        return {str(key): why for sweep in recordings for key, why in sweep.refused.items()}

    @property
    def graph_bytes(self) -> int:
        """Device memory that recording took."""
        return self.graphs.recordings.pool_bytes + self.prefill_graphs.recordings.pool_bytes

    @property
    def counters(self) -> dict[str, int]:
        """What the optional paths did, by outcome."""
        grown = sum(readback.grown for readback in self._readbacks)
        return {
            **self.graphs.counters,
            **self.prefill_graphs.counters,
            **self._tables.counters,
            **self._draws.counters,
            "readback: grown": grown,
        }

    @torch.inference_mode()
    def record_graphs(self) -> None:
        """Records the ladders on placeholder rows: all padding, over the null entry."""
        self._draws.sampler.warm()
        self._uploads.open()
        widest = DecodeShape(
            self.options.max_rows,
            1 + self.options.draft_depth,
            adapter_buckets(self.options.adapter_slots)[-1],
        )
        self._decode.prepare((), shape=widest, uploads=self._decode_uploads)
        self._decode_uploads.publish()
        self._prefill.stage_placeholders()
        self._uploads.seal()
        self._device.synchronize()
        self.graphs.record(
            lambda shape: self._decode_work(self._decode.views(shape)),
            lambda shape: self._recorded_tensors(self._decode.views(shape)),
        )
        self._prefill.record()
        self._device.synchronize()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> DeviceFlight:
        """See Runner."""
        slot = self._uploads.open()
        try:
            return self._launch(plan, slot)
        except Exception:
            self._draws.forget(plan.rows)
            raise
        finally:
            # A failed step gives its slot back as well: what it enqueued has been marked.
            self._uploads.seal()

    @torch.inference_mode()
    def finish(self, flight: DeviceFlight) -> None:
        """See Runner. Fills masks while the forward runs."""
        if flight.drawn is not None and flight.drawn.waits:
            try:
                self._complete(flight, flight.drawn)
            except Exception as error:
                flight.error = error

    @torch.inference_mode()
    def collect(self, flight: DeviceFlight) -> StepResult:
        """See Runner."""
        flight.readback.wait()
        if flight.error is not None:
            raise flight.error
        result = StepResult()
        if flight.drawn is not None:
            result.draws = self._draws.collect(flight.drawn)
        flight.prompt.collect(result)
        if flight.observation is not None:
            flight.observation.tell(flight.plan, result)
        return result

    def close(self) -> None:
        """See Runner."""
        self._device.synchronize()
        self.graphs.release()
        self._prefill.release()

    def sleep(self) -> int:
        """Gives weights and KV pool back to the device; the bytes. No step may be in flight.

        Keys and values are lost: the caller has ended all requests and flushed the prefix
        cache. Graphs hold addresses, and are dropped.
        """
        self.close()
        if self._asleep is None:
            weights = (*self._model.matrices, *self._drafter_weights)
            self._asleep = SleepingMemory(weights, (view.keys for view in self._views))
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

    def _launch(self, plan: StepPlan, slot: int) -> DeviceFlight:
        decoding = plan.rows[: plan.decode_rows]
        prefilling = plan.rows[plan.decode_rows :]
        sampling = [row for row in plan.rows if row.shape.samples]
        shape = self._route(decoding, 1 + plan.draft_depth)
        readback = self._readbacks[slot]
        readback.begin()
        flight = DeviceFlight(plan, shape, readback, PromptOutputs())
        if self._drafter is not None:
            flight.observation = Observation(self._drafter)
        if sampling:
            prompts = len(sampling) - len(decoding)
            widths = [shape.width] * len(decoding) + [1] * prompts
            flight.drawn = self._draws.begin(
                sampling, widths, slot=slot, uploads=self._decode_uploads
            )
            flight.drawn.redraw = bool(prefilling)
        meta, prefill = self._publish(decoding, prefilling, sampling, shape)
        if meta is not None:
            self.graphs.run(
                shape,
                len(decoding),
                self._decode_work(meta),
                lambda: self._recorded_tensors(meta),
            )
            if flight.observation is not None:
                flight.observation.note_decode(
                    self._model, shape, len(decoding), 1 + plan.draft_depth
                )
        if prefill is not None:
            self._run_prefill(prefill, len(decoding) * shape.width, flight)
        if flight.drawn is None:
            readback.seal()
        elif not flight.drawn.waits:
            self._complete(flight, flight.drawn)
        return flight

    def _route(self, decoding: Sequence[PlannedRow], width: int) -> DecodeShape:
        """What the decode rows run at: recorded rows may be wider than these."""
        if not decoding:
            return DecodeShape(0)
        room = 1
        if width > 1:
            room = self._decode.max_context - max(row.start for row in decoding)
        adapters = len(active_adapters(decoding)) if self.options.adapter_slots else 0
        return self.graphs.route(len(decoding), width, room=room, adapters=adapters)

    def _complete(self, flight: DeviceFlight, drawn: DrawnStep) -> None:
        """The last draws of a step and the copy of what it drew."""
        shape, live = flight.shape, flight.plan.decode_rows
        owners = None
        if shape.width == 1:
            owners = self._sample_row if drawn.redraw else self._decode.views(shape).table_row
            owners = owners[: len(drawn.rows)]
        fed = self._decode.views(shape).input_ids if live else self._sample_row[:0]
        try:
            self._draws.complete(drawn, flight.readback, fed=fed, owners=owners)
        finally:
            flight.readback.seal()

    def _publish(
        self,
        decoding: Sequence[PlannedRow],
        prefilling: Sequence[PlannedRow],
        sampling: Sequence[PlannedRow],
        shape: DecodeShape,
    ) -> tuple[DecodeMeta | None, PreparedPrefill | None]:
        """Stages and enqueues the step's metadata."""
        uploads = self._decode_uploads
        self._tables.prepare(
            (row.request.row for row in (*decoding, *prefilling)),
            uploads=uploads,
            whole_uploads=self._table_uploads,
        )
        meta = prefill = None
        if decoding:
            meta = self._decode.prepare(decoding, shape=shape, uploads=uploads)
        if prefilling:
            prefill = self._prefill.prepare(prefilling, observed=self._observed)
            owners = [row.request.row for row in sampling]
            uploads.take("sample_row", len(owners))[:] = owners
        uploads.publish()
        self._prefill.publish()
        self._table_uploads.publish()
        self._tables.publish()
        return meta, prefill

    def _decode_work(self, meta: DecodeMeta) -> Callable[[], None]:
        """A decode step from prepared metadata to the last-token table, without the host."""
        sampler, last_tokens = self._draws.sampler, self._draws.last_tokens
        tokens = sampler.outcome[0, : meta.shape.tokens]
        logits = self._draws.logits[: meta.shape.tokens]

        def work() -> None:
            torch.index_select(self._tables.tensor, 0, meta.table_row, out=meta.block_table)
            hidden = self._model.forward(
                meta.input_ids,
                meta.positions,
                meta,
                self._views,
                last_tokens,
                adapted=meta.adapted,
            )
            self._model.head(hidden, logits)
            sampler.draw(logits)
            if meta.shape.width == 1:
                last_tokens.index_copy_(0, meta.table_row, tokens)

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
            "last_tokens": self._draws.last_tokens,
            "logits": self._draws.logits,
            "settings": self._draws.sampler.settings.buffer,
            "outcome": self._draws.sampler.outcome,
        }

    def _run_prefill(self, prefill: PreparedPrefill, place: int, flight: DeviceFlight) -> None:
        """The prefill rows' forward; logits of those that complete stand from ``place`` on."""
        hidden = self._prefill.run(prefill, flight.prompt, flight.readback)
        if flight.observation is not None:
            flight.observation.note_prompts(self._model, prefill.tokens)
        if prefill.samples:
            self._model.head(hidden, self._draws.logits[place : place + prefill.samples])
