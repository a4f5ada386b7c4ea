"""What a drafter's forward reads of a step, in memory whose addresses never change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class DraftStep:
    """N tokens of B rows, as the engine's StepBatch has them; views of fixed memory."""

    input_ids: torch.Tensor
    """int32 (N)."""
    positions: torch.Tensor
    """int32 (N)."""
    write_slot: torch.Tensor
    """int64 (N)."""
    query_start: torch.Tensor
    """int32 (B+1)."""
    context_len: torch.Tensor
    """int32 (B)."""
    block_table: torch.Tensor
    """int32 (B, W)."""
    block_tokens: int
    max_query: int
    max_context: int


class _Column:
    """Host memory and its copy on the device; one storage on CPU."""

    def __init__(
        self, shape: tuple[int, ...], dtype: type[np.generic], device: torch.device
    ) -> None:
        self.host = np.zeros(shape, dtype=dtype)
        source = torch.from_numpy(self.host)
        self._source = source
        self._tensor = source if device.type == "cpu" else source.to(device)
        self._views: dict[int, torch.Tensor] = {}

    def publish(self, count: int, columns: int | None = None) -> torch.Tensor:
        """The first elements or rows; what the host has in the first columns of them, all by
        default, is there from here on."""
        view = self._views.get(count)
        if view is None:
            view = self._views[count] = self._tensor[:count]
        if self._tensor is not self._source:
            # Pageable memory is read before the call returns, so the host may go on writing.
            if columns is None:
                view.copy_(self._source[:count])
            elif columns:
                view[:, :columns].copy_(self._source[:count, :columns])
        return view

    @property
    def nbytes(self) -> int:
        return self.host.nbytes


class DraftInputs:
    """Fixed buffers for steps of up to ``tokens`` tokens and ``rows`` rows.

    A caller fills the host arrays and publishes them as one step. ``width`` is the largest
    number of blocks of a row.
    """

    def __init__(
        self, *, tokens: int, rows: int, width: int, block_tokens: int, device: torch.device
    ) -> None:
        self._block_tokens = block_tokens
        self._input_ids = _Column((tokens,), np.int32, device)
        self._positions = _Column((tokens,), np.int32, device)
        self._write_slot = _Column((tokens,), np.int64, device)
        self._query_start = _Column((rows + 1,), np.int32, device)
        self._context_len = _Column((rows,), np.int32, device)
        self._block_table = _Column((rows, width), np.int32, device)
        self.input_ids = self._input_ids.host
        self.positions = self._positions.host
        self.write_slot = self._write_slot.host
        self.query_start = self._query_start.host
        self.context_len = self._context_len.host
        self.block_table = self._block_table.host

    @staticmethod
    def predict_bytes(*, tokens: int, rows: int, width: int) -> int:
        """Bytes on the device."""
        return tokens * (4 + 4 + 8) + (rows + 1) * 4 + rows * 4 + rows * width * 4

    def publish(self, tokens: int, rows: int, columns: int | None = None) -> DraftStep:
        """The step of the first ``tokens`` tokens and ``rows`` rows, whose tables have changed in
        no more than the first ``columns``."""
        counts = np.diff(self.query_start[: rows + 1])
        return DraftStep(
            input_ids=self._input_ids.publish(tokens),
            positions=self._positions.publish(tokens),
            write_slot=self._write_slot.publish(tokens),
            query_start=self._query_start.publish(rows + 1),
            context_len=self._context_len.publish(rows),
            block_table=self._block_table.publish(rows, columns),
            block_tokens=self._block_tokens,
            max_query=int(counts.max()),
            max_context=int(self.context_len[:rows].max()),
        )
