"""The draw on the device: settings at fixed addresses, one capturable call, and the rest.

Every row is drawn by :meth:`DeviceSampler.draw`. Rows with penalties, logit bias or barred end
ids are then drawn again from adjusted logits, and log-probabilities are read, by
:meth:`DeviceSampler.finish`, which runs outside a graph. Works on CPU tensors too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from antiphon_kernels.sample import Fault, RowSettings, Workspace, sample

from antiphon_llm.messages import TopLogprobs

from .device_adjust import AdjustedRow, Adjustment, PenaltyState, Rebuild, penalised
from .device_scores import LARGEST_TOP, scores
from .draw import Draw
from .row import SamplerRow

_FAULTS = {
    Fault.NAN: "the model produced NaN logits for this request",
    Fault.EMPTY: "every token was ruled out: no finite logit is left for this request",
    Fault.INFINITE: "the model produced infinite logits for this request",
}


class DrawnRequest(Protocol):
    """What a draw needs of a request."""

    tokens: list[int]
    prompt_length: int
    row: int
    sampler: SamplerRow | None


class DrawnRow(Protocol):
    """A planned row that samples."""

    @property
    def request(self) -> DrawnRequest:
        """Whose token is drawn."""
        ...

    @property
    def end(self) -> int:
        """Absolute position of the token being drawn."""
        ...


class SettingsMirror:
    """Host copy of the rows' settings; a step that is in flight keeps its own."""

    def __init__(self, rows: int, *, pinned: bool) -> None:
        self.settings = RowSettings.allocate(rows, pinned=pinned)
        self._rows: list[SamplerRow | None] = [None] * rows
        self._special: set[int] = set()
        columns = self.settings
        self._temperature = columns.temperature.numpy()
        self._noise = columns.noise.numpy()
        self._top_k = columns.top_k.numpy()
        self._top_p = columns.top_p.numpy()
        self._log_min_p = columns.log_min_p.numpy()
        self._key = columns.key.numpy().view(np.uint64)
        self._position = columns.position.numpy()
        self._choice = columns.choice.numpy()

    def fill(self, samplers: Sequence[SamplerRow], positions: Sequence[int]) -> list[int]:
        """Writes what changed; returns the rows that one capturable draw cannot finish."""
        for index, sampler in enumerate(samplers):
            if self._rows[index] is not sampler:
                self._place(index, sampler)
        self._position[: len(positions)] = positions
        return sorted(index for index in self._special if index < len(samplers))

    def _place(self, index: int, row: SamplerRow) -> None:
        source = row.noise_key(0)
        self._temperature[index] = row.temperature
        self._noise[index] = float(row.noisy)
        self._top_k[index] = row.top_k
        self._top_p[index] = row.top_p
        self._log_min_p[index] = np.log(row.min_p) if row.min_p > 0 else -np.inf
        self._key[index] = source.key
        self._choice[index] = source.choice
        self._rows[index] = row
        sampling = row.sampling
        if (
            penalised(sampling)
            or sampling.logit_bias
            or sampling.min_tokens > 0
            or sampling.logprobs >= 0
        ):
            self._special.add(index)
        else:
            self._special.discard(index)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What :meth:`DeviceSampler.finish` has to do for one step."""

    adjusted: list[AdjustedRow]
    """Rows to draw again from adjusted logits."""
    rebuilds: list[Rebuild]
    scored: list[int]
    """Rows whose log-probabilities are read, by their place in the batch."""
    top: list[int]
    """How many best tokens each of them reports."""


class DeviceSampler:
    """Draws the batch's rows, which are addressed by their place in the plan.

    Attributes:
        settings: of ``rows`` rows on the device; ``settings.buffer`` is published from a
            mirror's before each step.
        outcome: int32 (2, rows) on the device: the tokens drawn and each row's fault; one
            copy takes both to the host.
    """

    def __init__(
        self, *, rows: int, slots: int, vocabulary: int, device: torch.device | str
    ) -> None:
        """``slots`` is the number of table rows, each of which can hold a penalty history."""
        device = torch.device(device)
        self.settings = RowSettings.allocate(rows, device)
        self.outcome = torch.zeros((2, rows), dtype=torch.int32, device=device)
        self._cuda = device.type == "cuda"
        self._workspace = Workspace.allocate(rows, vocabulary, device) if self._cuda else None
        self._penalties = PenaltyState(slots, vocabulary, device)
        self._adjustment: Adjustment | None = None
        self._scored: list[int] = []
        self._scored_index = torch.zeros(0, dtype=torch.int64, device=device)
        self._rows = rows

    @staticmethod
    def predict_bytes(rows: int, slots: int, vocabulary: int) -> int:
        """Device bytes that a sampler allocates at boot, but for its settings."""
        return Workspace.predict_bytes(rows, vocabulary) + PenaltyState.predict_bytes(
            slots, vocabulary
        )

    def mirror(self) -> SettingsMirror:
        """A host copy of the settings; one for each step that can be in flight."""
        return SettingsMirror(self._rows, pinned=self._cuda)

    def fill(self, mirror: SettingsMirror, rows: Sequence[DrawnRow]) -> Unfinished | None:
        """Fills a mirror for the sampling rows of a plan, in the order of their logits.

        Called once per launched step. Returns what ``draw`` alone leaves undone, None for
        most steps.
        """
        samplers = [row.request.sampler for row in rows if row.request.sampler is not None]
        if len(samplers) != len(rows):
            raise ValueError("a row that samples needs a sampler")
        special = mirror.fill(samplers, [row.end for row in rows])
        if not special:
            return None
        unfinished = Unfinished([], [], [], [])
        for index in special:
            self._note(index, rows[index], samplers[index], unfinished)
        return unfinished

    def _note(self, index: int, row: DrawnRow, sampler: SamplerRow, unfinished: Unfinished) -> None:
        request, sampling = row.request, sampler.sampling
        counted = penalised(sampling)
        if counted:
            rebuild = self._penalties.follow(request, sampler, row.end)
            if rebuild is not None:
                unfinished.rebuilds.append(rebuild)
        barred = row.end - request.prompt_length < sampling.min_tokens
        if counted or sampling.logit_bias or (barred and len(sampler.end_ids)):
            slot = request.row if counted else -1
            unfinished.adjusted.append(AdjustedRow(index, slot, sampler, barred))
        if sampling.logprobs >= 0:
            unfinished.scored.append(index)
            unfinished.top.append(min(sampling.logprobs, LARGEST_TOP))

    def publish(self, mirror: SettingsMirror) -> None:
        """Copies a mirror to the device, in stream order."""
        self.settings.buffer.copy_(mirror.settings.buffer, non_blocking=True)

    def draw(self, logits: torch.Tensor) -> None:
        """Draws into ``outcome[:, :R]`` from logits (R, V), fp32 or bf16; can be captured."""
        rows = logits.shape[0]
        sample(
            logits, self.settings, self.outcome[0, :rows], self.outcome[1, :rows], self._workspace
        )

    def finish(self, logits: torch.Tensor, unfinished: Unfinished) -> torch.Tensor | None:
        """Draws adjusted rows again and reads log-probabilities, after ``draw``; eager.

        ``logits`` (R, V) are those of the draw and stay as they are. Returns
        fp64 (scored rows, 1 + 2 * 20) on the device: the token's log-probability, the best
        ones and their ids; None when no row asks for them.
        """
        for rebuild in unfinished.rebuilds:
            self._penalties.rebuild(rebuild)
        if unfinished.adjusted:
            self._draw_adjusted(logits, unfinished.adjusted)
        if not unfinished.scored:
            return None
        if self._scored != unfinished.scored:
            self._scored = unfinished.scored
            self._scored_index = torch.tensor(unfinished.scored, device=logits.device)
        index = self._scored_index
        return scores(logits[index].float(), self.outcome[0, index])

    def _draw_adjusted(self, logits: torch.Tensor, rows: list[AdjustedRow]) -> None:
        adjustment = self._adjustment
        if adjustment is None or adjustment.rows != rows:
            # Uploaded only when the ordered list of rows or what applies to one changes.
            adjustment = self._adjustment = Adjustment(rows, self.settings)
        adjustment.move(self.settings)
        block = logits[adjustment.index].float()
        adjustment.apply(block, self._penalties)
        count = len(rows)
        tokens, faults = torch.zeros((2, count), dtype=torch.int32, device=logits.device)
        sample(block, adjustment.settings, tokens, faults, self._workspace)
        self.outcome[0, adjustment.index] = tokens
        self.outcome[1, adjustment.index] = faults
        adjustment.count(self._penalties, tokens)

    @staticmethod
    def draws(
        outcome: np.ndarray, unfinished: Unfinished | None, scored: np.ndarray | None
    ) -> list[Draw]:
        """What a step drew, from host copies of ``outcome[:, :R]`` and of finish's result."""
        tops: dict[int, tuple[float, TopLogprobs]] = {}
        if unfinished is not None and scored is not None:
            for index, count, row in zip(unfinished.scored, unfinished.top, scored, strict=True):
                best = row[1 : 1 + count].tolist()
                ids = row[1 + LARGEST_TOP : 1 + LARGEST_TOP + count].astype(np.int64).tolist()
                tops[index] = float(row[0]), TopLogprobs(ids, best)
        drawn = []
        for index, (token, fault) in enumerate(zip(*outcome.tolist(), strict=True)):
            if fault:
                drawn.append(Draw(-1, error=_FAULTS[Fault(fault)]))
            elif index in tops:
                drawn.append(Draw(token, *tops[index]))
            else:
                drawn.append(Draw(token))
        return drawn
