"""The draw on the device: settings at fixed addresses, one capturable call, and the rest.

A row draws the positions of its window, one or 1 + K of them, each with settings and logits of
its own. :meth:`DeviceSampler.draw` draws them all. Positions with penalties, logit bias, barred
or forced ids are then drawn again, and log-probabilities are read, by
:meth:`DeviceSampler.finish`, which runs outside a graph. Works on CPU tensors too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from antiphon_kernels.sample import Fault, Mask, RowSettings, Workspace, mask_words, sample

from antiphon_llm.messages import TopLogprobs

from .device_adjust import AdjustedRow, Adjustment, PenaltyState, Rebuild, penalised
from .device_scores import LARGEST_TOP, read_scores, scores
from .device_settings import SettingsMirror
from .draw import INFINITE_LOGITS, NAN_LOGITS, NO_VALID_TOKEN, Draw
from .row import SamplerRow

_FAULTS = {
    Fault.NAN: NAN_LOGITS,
    Fault.EMPTY: NO_VALID_TOKEN,
    Fault.INFINITE: INFINITE_LOGITS,
}
_WARM_ROWS = (1, 3)
"""Row counts that between them run every form of the kernels."""


class DrawnRequest(Protocol):
    """What a draw needs of a request."""

    tokens: list[int]
    prompt_length: int
    row: int
    sampler: SamplerRow | None


class DrawnRow(Protocol):
    """A planned row that samples."""

    drafts: tuple[int, ...]

    @property
    def request(self) -> DrawnRequest:
        """Whose tokens are drawn."""
        ...

    @property
    def first_draw(self) -> int:
        """Absolute position of the first token that is drawn."""
        ...


@dataclass(frozen=True, slots=True)
class MaskedRow:
    """A row whose processors may bar or force ids."""

    index: int
    """Among the step's sampling rows."""
    place: int
    """Of its first position among all positions of the step."""
    adjusted_place: int
    """The same among the adjusted positions; -1 for a row that is not adjusted."""


@dataclass(slots=True)
class Unfinished:
    """What :meth:`DeviceSampler.finish` has to do for one step."""

    adjusted: list[AdjustedRow] = field(default_factory=list)
    """Rows to draw again from adjusted logits."""
    rebuilds: list[Rebuild] = field(default_factory=list)
    folds: list[int] = field(default_factory=list)
    """Cells of the penalty counts to be raised by one; published into ``folds``."""
    scored: list[int] = field(default_factory=list)
    """Places whose log-probabilities are read."""
    top: dict[int, int] = field(default_factory=dict)
    """How many best tokens each of them reports."""
    masked: list[MaskedRow] = field(default_factory=list)
    counts: bool = True
    """Whether drawn tokens are counted as they are drawn: each row draws one."""


@dataclass(frozen=True, slots=True)
class StepMasks:
    """What a step's positions may draw; of rows that need none of it, nothing."""

    plain: Mask | None
    """For places of the step."""
    adjusted: Mask | None
    """For places of the adjusted logits."""


NO_MASKS = StepMasks(None, None)


class DeviceSampler:
    """Draws the batch's positions, which are addressed by their place: the windows of the
    plan's rows one behind another.

    Attributes:
        settings: of ``places`` positions on the device; ``settings.buffer`` is published from
            a mirror's before each step.
        folds: int64 (places) on the device, published from ``Unfinished.folds``.
        outcome: int32 (2, places) on the device: the tokens drawn and each position's fault;
            one copy takes both to the host.
    """

    def __init__(
        self, *, places: int, slots: int, vocabulary: int, device: torch.device | str
    ) -> None:
        """``slots`` is the number of table rows, each of which can hold a penalty history."""
        device = torch.device(device)
        self.settings = RowSettings.allocate(places, device)
        self.folds = torch.zeros(places, dtype=torch.int64, device=device)
        # Whole words of 16 bytes and rows of their own: kernels are compiled for an alignment.
        self.outcome = torch.zeros((2, _whole_words(places)), dtype=torch.int32, device=device)
        self._tokens = torch.zeros(places, dtype=torch.int32, device=device)
        self._faults = torch.zeros(places, dtype=torch.int32, device=device)
        self._cuda = device.type == "cuda"
        self._workspace = Workspace.allocate(places, vocabulary, device) if self._cuda else None
        self._penalties = PenaltyState(slots, vocabulary, device)
        self._adjustment: Adjustment | None = None
        self._scored: list[int] = []
        self._scored_index = torch.zeros(0, dtype=torch.int64, device=device)
        self._places = places
        self._vocabulary = vocabulary

    @staticmethod
    def predict_bytes(places: int, slots: int, vocabulary: int) -> int:
        """Device bytes that a sampler allocates at boot, but for its settings."""
        return (
            Workspace.predict_bytes(places, vocabulary)
            + PenaltyState.predict_bytes(slots, vocabulary)
            + 16 * places
            + 8 * _whole_words(places)
        )

    def mirror(self) -> SettingsMirror:
        """A host copy of the settings; one for each step that can be in flight."""
        return SettingsMirror(self._places, pinned=self._cuda)

    def warm(self) -> None:
        """Runs each form of the draw once, so that none is compiled while requests wait."""
        logits = torch.zeros((max(_WARM_ROWS), self._vocabulary), device=self.outcome.device)
        words = torch.zeros(
            (max(_WARM_ROWS), mask_words(self._vocabulary)),
            dtype=torch.int32,
            device=self.outcome.device,
        )
        for rows in _WARM_ROWS:
            count = min(rows, self._places)
            self.draw(logits[:count])
            places = torch.arange(count, dtype=torch.int32, device=logits.device)
            sample(
                logits[:count], self.settings, self._tokens, self._faults, self._workspace,
                Mask(places, words[:count], torch.zeros_like(places)),
            )  # fmt: skip

    def fill(
        self, mirror: SettingsMirror, rows: Sequence[DrawnRow], widths: Sequence[int]
    ) -> Unfinished | None:
        """Fills a mirror for the sampling rows of a plan, in the order of their logits.

        Called once per launched step. ``widths`` are the positions of each row; those behind
        its drafts are drawn and of no use. Returns what ``draw`` alone leaves undone, None for
        most steps.
        """
        samplers = [row.request.sampler for row in rows if row.request.sampler is not None]
        if len(samplers) != len(rows):
            raise ValueError("a row that samples needs a sampler")
        special = mirror.fill(samplers, [row.first_draw for row in rows], widths)
        constrained = [index for index, sampler in enumerate(samplers) if sampler.constrained]
        if not special and not constrained:
            return None
        unfinished = Unfinished(counts=all(width == 1 for width in widths))
        starts = np.cumsum([0, *widths]).tolist()
        adjusted_at: dict[int, int] = {}
        end = 0
        for index in special:
            note = self._note(
                rows[index], samplers[index], starts[index], widths[index], unfinished
            )
            if note is not None:
                unfinished.adjusted.append(note)
                adjusted_at[index] = end
                end += note.width
        unfinished.masked.extend(
            MaskedRow(index, starts[index], adjusted_at.get(index, -1)) for index in constrained
        )
        return unfinished

    def _note(
        self,
        row: DrawnRow,
        sampler: SamplerRow,
        place: int,
        width: int,
        unfinished: Unfinished,
    ) -> AdjustedRow | None:
        request, sampling = row.request, sampler.sampling
        counted = penalised(sampling)
        if counted:
            change = self._penalties.follow(
                request, sampler, row.first_draw, counts=unfinished.counts
            )
            if isinstance(change, Rebuild):
                unfinished.rebuilds.append(change)
            elif len(unfinished.folds) + len(change) <= self._places:
                unfinished.folds += change
            else:
                unfinished.rebuilds.append(Rebuild.of(request))
        if sampling.logprobs >= 0:
            places = range(place, place + 1 + len(row.drafts))
            unfinished.scored += places
            unfinished.top |= dict.fromkeys(places, min(sampling.logprobs, LARGEST_TOP))
        if counted or sampling.logit_bias:
            return AdjustedRow(place, width, request.row if counted else -1, sampler)
        return None

    def forget(self, slots: Iterable[int]) -> None:
        """Histories of these slots are built anew: what was foreseen for them did not come."""
        self._penalties.forget(slots)

    def publish(self, mirror: SettingsMirror, unfinished: Unfinished | None) -> None:
        """Copies a mirror and the folds to the device, in stream order."""
        self.settings.buffer.copy_(mirror.settings.buffer, non_blocking=True)
        if unfinished is not None and unfinished.folds:
            self.folds[: len(unfinished.folds)] = torch.tensor(unfinished.folds)

    def draw(self, logits: torch.Tensor) -> None:
        """Draws into ``outcome[:, :N]`` from logits (N, V), fp32 or bf16; can be captured."""
        places = logits.shape[0]
        sample(
            logits,
            self.settings,
            self.outcome[0, :places],
            self.outcome[1, :places],
            self._workspace,
        )

    def finish(
        self,
        logits: torch.Tensor,
        unfinished: Unfinished,
        *,
        fed: torch.Tensor,
        masks: StepMasks = NO_MASKS,
    ) -> torch.Tensor | None:
        """Draws adjusted and masked positions again and reads log-probabilities; eager.

        Args:
            logits: (N, V), those of the draw; they stay as they are.
            unfinished: what ``fill`` returned.
            fed: int32 (N), the ids that the places fed; a window's drafts stand behind its
                first.
            masks: of ``unfinished.masked``.

        Returns:
            fp64 (scored places, 2 + 2 * 20) on the device, see ``scores``; None when no row
            asks for them.
        """
        for rebuild in unfinished.rebuilds:
            self._penalties.rebuild(rebuild)
        if unfinished.folds:
            self._penalties.fold(self.folds[: len(unfinished.folds)])
        if masks.plain is not None:
            sample(
                logits, self.settings, self.outcome[0], self.outcome[1], self._workspace,
                masks.plain,
            )  # fmt: skip
        if unfinished.adjusted:
            self._draw_adjusted(logits, unfinished, fed, masks.adjusted)
        if not unfinished.scored:
            return None
        if self._scored != unfinished.scored:
            self._scored = unfinished.scored
            self._scored_index = torch.tensor(unfinished.scored, device=logits.device)
        index = self._scored_index
        return scores(logits[index].float(), self.outcome[0, index])

    def _draw_adjusted(
        self, logits: torch.Tensor, unfinished: Unfinished, fed: torch.Tensor, mask: Mask | None
    ) -> None:
        adjustment = self._adjustment
        if adjustment is None or adjustment.rows != unfinished.adjusted:
            # Uploaded only when the ordered list of rows or what applies to one changes.
            adjustment = self._adjustment = Adjustment(unfinished.adjusted, self.settings)
        adjustment.move(self.settings)
        block = logits[adjustment.index].float()
        adjustment.apply(block, self._penalties, fed)
        count = len(block)
        tokens, faults = self._tokens[:count], self._faults[:count]
        if mask is None or mask.rows.shape[0] < count:
            sample(block, adjustment.settings, tokens, faults, self._workspace)
        if mask is not None:
            sample(block, adjustment.settings, tokens, faults, self._workspace, mask)
        self.outcome[0, adjustment.index] = tokens
        self.outcome[1, adjustment.index] = faults
        if unfinished.counts:
            adjustment.count(self._penalties, tokens)

    @staticmethod
    def draws(
        outcome: np.ndarray,
        rows: Sequence[DrawnRow],
        widths: Sequence[int],
        unfinished: Unfinished | None = None,
        scored: np.ndarray | None = None,
    ) -> list[list[Draw]]:
        """What each row emits, from host copies of ``outcome[:, :N]`` and of finish's result.

        A row's tokens up to the first that differs from its draft, and an error as its last:
        what stands behind was drawn for a text that is not the row's (match acceptance).
        """
        tops: dict[int, tuple[float, TopLogprobs]] = {}
        if unfinished is not None and scored is not None:
            for place, row in zip(unfinished.scored, scored, strict=True):
                tops[place] = read_scores(row, unfinished.top[place])
        tokens, faults = outcome.tolist()
        emitted = []
        first = 0
        for row, width in zip(rows, widths, strict=True):
            drawn = []
            for place, draft in enumerate((*row.drafts, -1), first):
                token = tokens[place]
                if faults[place]:
                    drawn.append(_FAULTS[Fault(faults[place])])
                    break
                drawn.append(Draw(token, *tops[place]) if place in tops else Draw(token))
                if token != draft:
                    break
            emitted.append(drawn)
            first += width
        return emitted


def _whole_words(places: int) -> int:
    """So many int32, rounded up to 16 bytes."""
    return -(-places // 4) * 4
