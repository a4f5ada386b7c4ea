"""Keys and values of the decoder: rows of text, and places of encoded audio."""

from __future__ import annotations

import torch
from antiphon_kernels.store_kv import store_kv

from antiphon_vocoder.recognition.whisper_torch.weights import WhisperShape

PAGE = 16
"""Positions that a block table addresses at once; what the CUDA kernel takes."""


def pages_of(positions: int) -> int:
    """Pages that hold so many positions."""
    return -(-positions // PAGE)


class Memory:
    """Caches of all layers, allocated once. Memory of a processor is used as it is touched.

    Text: each row has room for every position that the decoder takes, so that it never moves.
    Audio: each place has room for 30 s. A short window fills its first pages; the block table
    continues with the pages of pure silence, which are stored once.

    Attributes:
        text: (keys, values) of each layer, (slots, heads, head width).
        audio: likewise.
        row_pages: pages of a text row.
        place_pages: pages of an audio place.
    """

    def __init__(
        self,
        shape: WhisperShape,
        *,
        rows: int,
        places: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.row_pages = pages_of(shape.target_positions)
        self.place_pages = pages_of(shape.source_positions)
        head = (shape.decoder_heads, shape.width // shape.decoder_heads)

        def caches(pages: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
            # The first page is the null page of block tables.
            size = ((1 + pages) * PAGE, *head)
            return [
                (
                    torch.zeros(size, device=device, dtype=dtype),
                    torch.zeros(size, device=device, dtype=dtype),
                )
                for _ in range(shape.decoder_layers)
            ]

        self.text = caches(rows * self.row_pages)
        self.audio = caches((places + 1) * self.place_pages)
        self._device = device
        self.tables = [self._pages(row * self.row_pages, self.row_pages) for row in range(rows)]
        """Block table (row_pages) int32 of each text row, on the host."""
        self._silence = self._pages(0, self.place_pages)

    def slots(self, row: int, first: int, count: int) -> torch.Tensor:
        """Slots (count) int64 of a text row's positions from ``first`` on."""
        start = self.slot(row, first)
        return torch.arange(start, start + count)

    def slot(self, row: int, position: int) -> int:
        """Slot of one position of a text row."""
        return (1 + row * self.row_pages) * PAGE + position

    def store_silence(self, keys_values: list[torch.Tensor]) -> None:
        """Keeps what stands behind every short window; as ``store`` for all positions."""
        self._store(0, keys_values)

    def store(self, place: int, keys_values: list[torch.Tensor]) -> torch.Tensor:
        """Keeps the audio of a place.

        Args:
            place: from 0.
            keys_values: of each layer, (positions, 2, heads, head width); whole pages, or all.

        Returns:
            The block table (place_pages) int32, on the host.
        """
        first = (1 + place) * self.place_pages
        self._store(first, keys_values)
        own = pages_of(len(keys_values[0]))
        return torch.cat((self._pages(first, own), self._silence[own:]))

    def keys(self, layer: int, place: int, positions: int) -> torch.Tensor:
        """Keys (positions, heads, head width) of the audio at a place."""
        first = (1 + (1 + place) * self.place_pages) * PAGE
        return self.audio[layer][0][first : first + positions]

    def copy_rows(self, sources: list[int], targets: list[int], positions: int) -> None:
        """Copies the first positions of text rows; all are read before any is written."""
        where = torch.tensor(targets, device=self._device)
        taken = torch.tensor(sources, device=self._device)
        for pair in self.text:
            for cache in pair:
                rows = cache[PAGE:].view(-1, self.row_pages * PAGE, *cache.shape[1:])
                rows[where, :positions] = rows[taken, :positions]

    def _store(self, first: int, keys_values: list[torch.Tensor]) -> None:
        start = (1 + first) * PAGE
        slots = torch.arange(start, start + len(keys_values[0]), device=self._device)
        for pair, new in zip(self.audio, keys_values, strict=True):
            store_kv(new[:, 0], new[:, 1], *pair, slots)

    def _pages(self, first: int, count: int) -> torch.Tensor:
        return torch.arange(1 + first, 1 + first + count, dtype=torch.int32)
