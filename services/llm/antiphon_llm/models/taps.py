"""Copies of the residual stream behind named layers, for drafters that read them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from antiphon_kernels.store_kv import store_kv

from .workspace import LayerViews


class HiddenTaps:
    """What the tapped layers left in the residual stream in the last forward.

    Steps of up to ``fixed_tokens`` tokens have memory whose addresses never change, so recorded
    steps keep the taps too. Packed products leave what the last half block adds apart from the
    stream; both parts are then stored by a kernel that a program can hold, and joined behind it.
    """

    def __init__(
        self,
        layers: Sequence[int],
        *,
        hidden_size: int,
        packed: bool,
        fixed_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.layers = tuple(layers)
        self._places = {layer: place for place, layer in enumerate(self.layers)}
        self._hidden_size = hidden_size
        self._packed = packed
        self._device, self._dtype = device, dtype
        self._fixed_tokens = fixed_tokens
        self._fixed = self._growing = self._allocate(fixed_tokens)
        self._apart: set[int] = set()
        """Layers whose update the packed path stored beside the stream."""

    @property
    def nbytes(self) -> int:
        """Bytes that are held now."""
        held = {id(buffers): buffers for buffers in (self._fixed, self._growing)}
        return sum(tensor.nbytes for buffers in held.values() for tensor in buffers)

    def predict_bytes(self, tokens: int) -> int:
        """Bytes that are held once a step of so many tokens was seen."""
        rows = self._fixed_tokens + (tokens if tokens > self._fixed_tokens else 0)
        streams = len(self.layers) * (2 if self._packed else 1)
        slots = rows * torch.int64.itemsize
        return rows * streams * self._hidden_size * self._dtype.itemsize + slots

    def reserve(self, tokens: int) -> None:
        """Takes the memory for the widest step before any step runs."""
        self._buffers(tokens)

    def keep(self, layer: int, work: LayerViews, apart: bool) -> None:
        """Keeps the stream behind a layer, if that is tapped; ``apart`` as the layer left it."""
        place = self._places.get(layer)
        if place is None:
            return
        rows = work.hidden.shape[0]
        streams, updates, slots = self._buffers(rows)
        stream = streams[place, :rows]
        if self._packed and apart:
            store_kv(
                work.hidden.unsqueeze(1),
                work.update.unsqueeze(1),
                streams[place].unsqueeze(1),
                updates[place].unsqueeze(1),
                slots[:rows],
            )
            self._apart.add(place)
        elif apart:
            torch.add(work.hidden, work.update, out=stream)
        else:
            stream.copy_(work.hidden)

    def join(self, rows: int) -> None:
        """Completes what ``keep`` stored in two parts; after the blocks, recorded or not."""
        if self._apart:
            streams, updates, _ = self._buffers(rows)
            for place in self._apart:
                streams[place, :rows].add_(updates[place, :rows])

    def views(self, rows: int) -> dict[int, torch.Tensor]:
        """(N, H) by layer, of the last forward's N tokens; valid until the next."""
        streams = self._buffers(rows)[0]
        return {layer: streams[place, :rows] for layer, place in self._places.items()}

    def _buffers(self, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Streams and updates, each (layers, N or more, H), and the slots 0, 1, 2, ..."""
        if rows <= self._fixed_tokens:
            return self._fixed
        if rows > self._growing[0].shape[1]:
            self._growing = self._allocate(rows)
        return self._growing

    def _allocate(self, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        on, dtype = self._device, self._dtype
        count, updates = len(self.layers), len(self.layers) if self._packed else 0
        return (
            torch.zeros((count, rows, self._hidden_size), device=on, dtype=dtype),
            torch.zeros((updates, rows, self._hidden_size), device=on, dtype=dtype),
            torch.arange(rows, device=on),
        )
