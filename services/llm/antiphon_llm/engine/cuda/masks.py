"""Masks of constrained rows on their way to the device, filled while the forward runs there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from antiphon_kernels.sample import Mask, mask_words

from antiphon_llm.sampler.device import MaskedRow, StepMasks
from antiphon_llm.sampler.window import Window

from .device import Device

_ALIGNMENT = 4
"""int32 to which each part is aligned: kernels are compiled for a pointer's alignment."""


class MaskUploads:
    """Pinned memory of each step that can be in flight, and the device memory it is copied to.

    The copy goes in stream order behind the draw of the step before, which reads the same device
    memory. What is not needed is not sent.
    """

    def __init__(self, device: Device, *, places: int, vocabulary: int, slots: int) -> None:
        """``places`` positions of a step at most, of ``slots`` steps in flight."""
        self._words = mask_words(vocabulary)
        # Two sections, each of three parts that begin aligned.
        size = places * (2 + self._words) + 2 * 3 * _ALIGNMENT
        pinned = [device.pinned(4 * size) for _ in range(slots)]
        self._pinned = [memory.view(torch.int32) for memory in pinned]
        self._hosts = [memory.numpy() for memory in self._pinned]
        self._events = [device.event() for _ in range(slots)]
        self._on_device = torch.zeros(size, dtype=torch.int32, device=device.device)
        self._vocabulary = vocabulary

    def send(self, slot: int, windows: Sequence[tuple[MaskedRow, Window]]) -> StepMasks:
        """Enqueues one copy of these rows' masks; valid on the device until the next."""
        # Passed when the step that used the slot last was collected.
        self._events[slot].synchronize()
        plain = [(row.place, window) for row, window in windows if row.adjusted_place < 0]
        adjusted = [
            (row.adjusted_place, window) for row, window in windows if row.adjusted_place >= 0
        ]
        host = self._hosts[slot]
        first, end = self._write(host, 0, plain)
        second, end = self._write(host, end, adjusted)
        if end:
            self._on_device[:end].copy_(self._pinned[slot][:end], non_blocking=True)
            self._events[slot].record()
        return StepMasks(first, second)

    def _write(
        self, host: np.ndarray, begin: int, windows: Sequence[tuple[int, Window]]
    ) -> tuple[Mask | None, int]:
        """Lays out rows, forced ids and bits from ``begin`` on; the mask and where it ends."""
        count = sum(window.width for _, window in windows)
        if not count:
            return None, begin
        spans = []
        for size in (count, count, count * self._words):
            spans.append(slice(begin, begin + size))
            begin += -(-size // _ALIGNMENT) * _ALIGNMENT
        rows, forced, bits = (host[span] for span in spans)
        bits = bits.reshape(count, self._words)
        at = 0
        for place, window in windows:
            end = at + window.width
            rows[at:end] = range(place, place + window.width)
            forced[at:end] = window.forced
            bits[at:end] = -1 if window.mask is None else window.mask.view(np.int32)
            at = end
        rows_on, forced_on, bits_on = (self._on_device[span] for span in spans)
        return Mask(rows_on, bits_on.view(count, self._words), forced_on), begin
