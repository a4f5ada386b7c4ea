"""Left contexts of causal layers: one flat row a slot, gathered and stored once a step.

Each layer keeps its last inputs. All of them together are one tensor, so that a step moves them
with one gather and one scatter, however many layers there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from antiphon_vocoder.codec.state import SlotState

NAME = "carry"
"""Its name among a state's tensors."""

STARTED = "started"
"""Name of the mark (slots + 1) int64 that a slot has run a step: only where layers ask for it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a layer's context stands in the flat row."""

    begin: int
    positions: int
    channels: int

    @property
    def end(self) -> int:
        """Behind the last element."""
        return self.begin + self.positions * self.channels


class CarryLayout:
    """Hands out places while a model is built."""

    def __init__(self) -> None:
        self.size = 0

    def place(self, positions: int, channels: int) -> Place:
        """The place of a layer that needs so many earlier positions."""
        place = Place(self.size, positions, channels)
        self.size = place.end
        return place

    def tensor(self, slots: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """The rows (slots + 1, size) of a state, zero."""
        return torch.zeros(slots + 1, self.size, device=device, dtype=dtype)


class Carry:
    """The contexts of one step's rows.

    A kernel that reads and writes contexts itself finds them by ``state``, ``rows``, ``targets``
    and a layer's place.

    Attributes:
        state: the state that is advanced.
        rows: (B,) int64, or None where row i is slot i.
        targets: (B,) int64, where each row writes.
        fresh: (B, 1, 1) bool, which rows begin a stream; None where no layer asks.
    """

    def __init__(
        self, state: SlotState, rows: torch.Tensor | None, exec_mask: torch.Tensor
    ) -> None:
        self.state = state
        self.rows = rows
        self.batch = exec_mask.shape[0]
        self.targets = state.targets(rows, exec_mask)
        self.fresh: torch.Tensor | None = None
        if STARTED in state.tensors:
            self.fresh = (state.read(STARTED, rows, self.batch) == 0)[:, None, None]
        self._old = state.read(NAME, rows, self.batch)
        self._tails: dict[int, torch.Tensor] = {}

    def flat(self, place: Place) -> torch.Tensor:
        """A layer's context (B, positions * channels)."""
        return self._old[:, place.begin : place.end]

    def old(self, place: Place) -> torch.Tensor:
        """A layer's context (B, positions, channels)."""
        return self.flat(place).unflatten(1, (place.positions, place.channels))

    def extend(
        self,
        place: Place,
        x: torch.Tensor,
        beginning: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """x (B, T, channels) behind its context: (B, positions + T, channels).

        Args:
            place: the layer's.
            x: its new inputs.
            beginning: gives the context (B, positions, channels) of rows that begin a stream,
                zeros where there is none.
        """
        if not place.positions:
            return x
        context = self.old(place).to(x.dtype)
        if beginning is not None:
            assert self.fresh is not None, "the state has no mark of its beginnings"
            context = torch.where(self.fresh, beginning(x), context)
        extended = torch.cat([context, x], dim=1)
        self.keep(place, extended[:, -place.positions :])
        return extended

    def keep(self, place: Place, context: torch.Tensor) -> None:
        """Notes a layer's next context (B, positions, channels), or flat."""
        if place.end > place.begin:
            self._tails[place.begin] = context.flatten(1)

    def commit(self) -> None:
        """Stores all contexts; each place must have been used exactly once."""
        tails = [self._tails[begin] for begin in sorted(self._tails)]
        if tails:
            row = torch.cat(tails, dim=1)
            self.state.write(NAME, self.targets, row.to(self._old.dtype))
        if STARTED in self.state.tensors:
            self.state.tensors[STARTED].index_fill_(0, self.targets, 1)
