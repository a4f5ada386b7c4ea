"""The draws of a step: its settings, what waits for committed tokens, and what its rows emit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from antiphon_core.logs import get_logger

from antiphon_llm.engine.emitted import advanced
from antiphon_llm.engine.failures import FailureKind, classify
from antiphon_llm.engine.plan import PlannedRow
from antiphon_llm.engine.uploads import UploadGroup
from antiphon_llm.sampler.device import (
    NO_MASKS,
    DeviceSampler,
    MaskedRow,
    StepMasks,
    Unfinished,
)
from antiphon_llm.sampler.draw import Draw
from antiphon_llm.sampler.window import Window

from .device import Device
from .masks import MaskUploads
from .readback import Readback

_log = get_logger(__name__)


@dataclass(slots=True)
class DrawnStep:
    """The sampling rows of one step and where what they drew arrives."""

    rows: Sequence[PlannedRow]
    widths: list[int]
    """Positions that each row draws on the device, padding included."""
    slot: int
    unfinished: Unfinished | None
    """What one draw of all positions leaves undone."""
    redraw: bool = False
    """Whether the forward has not drawn for all rows."""
    outcome: np.ndarray | None = None
    """int32 (2, N): tokens and faults."""
    scored: np.ndarray | None = None
    refused: dict[int, Draw] = field(default_factory=dict)
    """Rows whose processors failed, by their place among the rows."""

    @property
    def waits(self) -> bool:
        """Whether it cannot be completed before all earlier steps are committed."""
        return self.unfinished is not None and bool(self.unfinished.masked)


class StepDraws:
    """Logits and draws of the positions of a step, the decode rows' first.

    Attributes:
        logits: fp32 (places, V).
        last_tokens: int32 (rows + 1), the last token drawn for each row of the block tables.
        counters: what was drawn apart from the forward, by reason.
    """

    def __init__(
        self, device: Device, *, rows: int, width: int, vocabulary: int, slots: int
    ) -> None:
        """``rows`` rows of ``width`` tokens at most, ``slots`` steps in flight."""
        places, on = rows * width, device.device
        self.logits = torch.zeros((places, vocabulary), dtype=torch.float32, device=on)
        self.last_tokens = torch.zeros(rows + 1, dtype=torch.int32, device=on)
        self.sampler = DeviceSampler(places=places, slots=rows, vocabulary=vocabulary, device=on)
        self._masks = MaskUploads(device, places=places, vocabulary=vocabulary, slots=slots)
        self._mirrors = [self.sampler.mirror() for _ in range(slots)]
        self.counters = {
            "draw: with prompts": 0,
            "draw: adjusted, masked or scored": 0,
            "draw: masked rows": 0,
        }

    @property
    def targets(self) -> dict[str, torch.Tensor]:
        """Members of the group that carries settings."""
        return {"settings": self.sampler.settings.buffer, "folds": self.sampler.folds}

    def begin(
        self,
        rows: Sequence[PlannedRow],
        widths: list[int],
        *,
        slot: int,
        uploads: UploadGroup,
    ) -> DrawnStep:
        """Stages the settings of a step's sampling rows."""
        mirror = self._mirrors[slot]
        unfinished = self.sampler.fill(mirror, rows, widths)
        settings = mirror.settings.buffer.numpy()
        uploads.take("settings", len(settings))[:] = settings
        if unfinished is not None and unfinished.folds:
            uploads.take("folds", len(unfinished.folds))[:] = unfinished.folds
        return DrawnStep(rows, widths, slot, unfinished)

    def forget(self, rows: Sequence[PlannedRow]) -> None:
        """Nothing of a step that was begun has been launched."""
        self.sampler.forget(row.request.row for row in rows)

    def complete(
        self,
        step: DrawnStep,
        readback: Readback,
        *,
        fed: torch.Tensor,
        owners: torch.Tensor | None,
    ) -> None:
        """Draws what the forward did not, and enqueues the copy to the host.

        With prompts in the step all rows are drawn at once, the decode rows a second time:
        a draw depends on its own row's key and position alone.

        Args:
            step: from ``begin``, its logits are being computed.
            readback: of the step.
            fed: int32, the ids at the decode rows' places.
            owners: int64, rows of the block tables whose last token a later step may embed
                before the host knows it; None if none will.
        """
        count = sum(step.widths)
        logits, unfinished = self.logits[:count], step.unfinished
        if step.redraw:
            self.counters["draw: with prompts"] += 1
            self.sampler.draw(logits)
        if unfinished is not None:
            self.counters["draw: adjusted, masked or scored"] += 1
            masks = self._fill_masks(step) if step.waits else NO_MASKS
            scored = self.sampler.finish(logits, unfinished, fed=fed, masks=masks)
            if scored is not None:
                step.scored = readback.copy(scored)
        if owners is not None and (step.redraw or unfinished is not None):
            self.last_tokens.index_copy_(0, owners, self.sampler.outcome[0, :count])
        step.outcome = readback.copy(self.sampler.outcome)[:, :count]

    def collect(self, step: DrawnStep) -> list[tuple[PlannedRow, list[Draw]]]:
        """What each row emits, once the copy has arrived; samplers have followed it."""
        assert step.outcome is not None
        drawn = self.sampler.draws(
            step.outcome, step.rows, step.widths, step.unfinished, step.scored
        )
        for index, refused in step.refused.items():
            drawn[index] = [refused]
        return [(row, _followed(row, draws)) for row, draws in zip(step.rows, drawn, strict=True)]

    def _fill_masks(self, step: DrawnStep) -> StepMasks:
        """Asks the constrained rows what they may draw, while the forward runs."""
        assert step.unfinished is not None
        windows: list[tuple[MaskedRow, Window]] = []
        for masked in step.unfinished.masked:
            row = step.rows[masked.index]
            if not row.current:
                continue
            try:
                window = _window(row)
            except Exception as error:
                if classify(error) is not FailureKind.REQUEST:
                    raise
                _log.exception("mask_failed", request_id=row.request.request_id)
                step.refused[masked.index] = Draw(
                    -1, error=f"the mask failed: {type(error).__name__}: {error}"
                )
                continue
            if not window.free:
                windows.append((masked, window))
        self.counters["draw: masked rows"] += len(windows)
        return self._masks.send(step.slot, windows)


def _window(row: PlannedRow) -> Window:
    """What the row's processors rule for its positions."""
    sampler = row.request.sampler
    assert sampler is not None
    sampler.rewind(row.first_draw - row.request.prompt_length)
    return sampler.window(row.drafts)


def _followed(row: PlannedRow, draws: list[Draw]) -> list[Draw]:
    """The row's draws after its sampler has taken them; those of a lost row are dropped."""
    sampler = row.request.sampler
    if sampler is None or not row.current:
        return draws
    # A draw whose request then lost its row was dropped, and has been made again now.
    sampler.rewind(row.first_draw - row.request.prompt_length)
    return advanced(row, sampler, draws)
