"""The host's copy of what the device draws with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from antiphon_kernels.sample import RowSettings

from .device_adjust import penalised
from .row import SamplerRow


class SettingsMirror:
    """Host copy of the positions' settings; a step that is in flight keeps its own."""

    def __init__(self, places: int, *, pinned: bool) -> None:
        self.settings = RowSettings.allocate(places, pinned=pinned)
        self._rows: list[SamplerRow | None] = [None] * places
        self._special = [False] * places
        columns = self.settings
        self._temperature = columns.temperature.numpy()
        self._noise = columns.noise.numpy()
        self._top_k = columns.top_k.numpy()
        self._top_p = columns.top_p.numpy()
        self._log_min_p = columns.log_min_p.numpy()
        self._key = columns.key.numpy().view(np.uint64)
        self._position = columns.position.numpy()
        self._choice = columns.choice.numpy()

    def fill(
        self, samplers: Sequence[SamplerRow], positions: Sequence[int], widths: Sequence[int]
    ) -> list[int]:
        """Writes what changed: each row has ``widths[i]`` places, from ``positions[i]`` on.

        Returns the rows that one capturable draw may not finish.
        """
        special = []
        place = 0
        for index, (sampler, width) in enumerate(zip(samplers, widths, strict=True)):
            rows, end = self._rows, place + width
            if rows[place] is not sampler or (width > 1 and rows[place:end] != [sampler] * width):
                self._place(slice(place, end), sampler)
            if self._special[place]:
                special.append(index)
            place = end
        if place == len(positions):
            self._position[:place] = positions
        else:
            self._position[:place] = np.repeat(positions, widths) + _offsets_in(widths)
        return special

    def _place(self, places: slice, row: SamplerRow) -> None:
        source = row.noise_key(0)
        self._temperature[places] = row.temperature
        self._noise[places] = float(row.noisy)
        self._top_k[places] = row.top_k
        self._top_p[places] = row.top_p
        self._log_min_p[places] = np.log(row.min_p) if row.min_p > 0 else -np.inf
        self._key[places] = source.key
        self._choice[places] = source.choice
        width = places.stop - places.start
        self._rows[places] = [row] * width
        sampling = row.sampling
        special = penalised(sampling) or bool(sampling.logit_bias) or sampling.logprobs >= 0
        self._special[places] = [special] * width


def _offsets_in(widths: Sequence[int]) -> np.ndarray:
    """0 .. width - 1 for each of the widths, one behind another."""
    ends = np.cumsum(widths)
    return np.arange(ends[-1]) - np.repeat(ends - widths, widths)
