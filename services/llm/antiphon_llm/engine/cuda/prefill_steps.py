"""The prefill part of a step: its metadata, its graph or its Python, its last hidden states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from antiphon_llm.engine.batch import StepBatch
from antiphon_llm.engine.plan import PlannedRow
from antiphon_llm.engine.runner import LayerCache
from antiphon_llm.engine.uploads import StepUploads
from antiphon_llm.kvcache.block_table import BlockTables

from .device import Device
from .prefill_graphs import LADDER, PrefillGraphs, PrefillKey
from .prefill_path import PrefillPath
from .prompt_outputs import PromptOutputs
from .readback import Readback
from .tables import DeviceTables

if TYPE_CHECKING:
    from .contract import DeviceModel, RunnerOptions


@dataclass(frozen=True, slots=True)
class PreparedPrefill:
    """Prefill rows whose metadata is staged."""

    rows: Sequence[PlannedRow]
    batch: StepBatch
    tokens: int
    samples: int
    """Rows that end their prompt and draw."""
    read: bool
    """Whether hidden states of prompt tokens are read."""
    key: PrefillKey | None
    """The recording that runs it."""


class PrefillSteps:
    """Runs the prefill rows of steps.

    Attributes:
        graphs: the recorded steps and what ran of them.
    """

    def __init__(
        self,
        device: Device,
        model: DeviceModel,
        views: Sequence[LayerCache],
        tables: BlockTables,
        device_tables: DeviceTables,
        uploads: StepUploads,
        options: RunnerOptions,
    ) -> None:
        self._model = model
        self._views = views
        self._device_tables = device_tables
        self._path = PrefillPath(
            tables,
            device_tables,
            step_tokens=options.step_tokens,
            device=device.device,
            adapters=options.adapter_slots,
        )
        self._uploads = uploads.group("prefill", self._path.targets)
        self.graphs = PrefillGraphs(
            device,
            tokens_max=options.step_tokens,
            context_limit=tables.width * tables.entry_tokens,
            enabled=options.graphs and options.prefill_graphs,
            debug=options.debug,
        )
        self._step_tokens = options.step_tokens
        self._widest = min(options.step_tokens, LADDER[-1])
        self._states: torch.Tensor | None = None

    def prepare(self, rows: Sequence[PlannedRow], *, observed: bool = False) -> PreparedPrefill:
        """Chooses how the rows run and stages their metadata; ``observed`` says that a drafter
        reads the hidden states of all tokens."""
        tokens = sum(row.shape.tokens for row in rows)
        read = any(row.request.reads_prompt for row in rows)
        longest = max(row.end for row in rows)
        adapted = any(row.request.adapter_slot for row in rows)
        key = self.graphs.route(len(rows), tokens, longest, read=read or observed, adapted=adapted)
        batch = self._path.prepare(rows, uploads=self._uploads, key=key)
        samples = sum(row.shape.samples for row in rows)
        return PreparedPrefill(rows, batch, tokens, samples, read, key)

    def publish(self) -> None:
        """Enqueues the staged metadata."""
        self._uploads.publish()

    def run(
        self, prepared: PreparedPrefill, outputs: PromptOutputs, readback: Readback
    ) -> torch.Tensor:
        """Final hidden states (samples, H) of the rows that draw, valid until the next step."""
        key = prepared.key
        if key is not None:
            self.graphs.run(key, prepared.tokens, lambda: self._read_by(key))
            return self._kept()[: prepared.samples]
        if not prepared.read:
            return self._last_states(prepared.batch)
        self._path.gather(prepared.batch)
        hidden = self._forward(prepared.batch)
        outputs.enqueue(prepared.rows, hidden, self._model, readback)
        return hidden.index_select(0, prepared.batch.sample_index)

    def stage_placeholders(self) -> None:
        """Uploads the metadata of a step without a row: all tokens are padding."""
        self._path.prepare((), uploads=self._uploads, key=PrefillKey(self._widest, 0))
        self._uploads.publish()

    def record(self) -> None:
        """Records the ladder on the placeholders."""
        self._model.reserve(self._step_tokens)
        self.graphs.record(self._recorded_work, self._read_by)

    def release(self) -> None:
        """Drops the recordings."""
        self.graphs.release()
        self._states = None

    def _recorded_work(self, key: PrefillKey) -> Callable[[], None]:
        batch = self._path.views(key)

        def work() -> None:
            states = self._last_states(batch)
            if self._states is None:
                self._states = torch.empty_like(states)
            self._states.copy_(states)

        return work

    def _kept(self) -> torch.Tensor:
        """(ROWS, H), where every recording leaves its states: one place, made before the first is
        recorded, so that running a recorded step's Python (to time it) cannot move it."""
        if self._states is None:
            raise RuntimeError("no prefill step is recorded")
        return self._states

    def _last_states(self, batch: StepBatch) -> torch.Tensor:
        self._path.gather(batch)
        if self._model.prunes(batch.input_ids.shape[0], batch.sample_index.shape[0]):
            return self._model.forward(
                batch.input_ids,
                batch.positions,
                batch,
                self._views,
                wanted=self._path.wanted(batch),
                adapted=batch.adapted,
            )
        return self._forward(batch).index_select(0, batch.sample_index)

    def _forward(self, batch: StepBatch) -> torch.Tensor:
        return self._model.forward(
            batch.input_ids, batch.positions, batch, self._views, adapted=batch.adapted
        )

    def _read_by(self, key: PrefillKey) -> Mapping[str, torch.Tensor]:
        """Whatever a recording reads or writes beside weights and workspace."""
        caches = {
            f"{index}.{side}": getattr(view, side)
            for index, view in enumerate(self._views)
            for side in ("keys", "values")
        }
        return {**self._path.targets, **caches, "tables": self._device_tables.tensor}
