"""One allocation that holds every paged field of every entry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from .fields import ALIGNMENT, FieldSpec, align, entry_bytes, spare_bytes


class KvPool:
    """Carves ``entries`` usable entries, and the null entry 0, out of one buffer.

    ``views[name]`` has shape ``(entries + 1 + spare units, rows_per_entry, *row_shape)``. Host
    memory is mapped on first write, so a pool that is larger than the traffic costs address
    space only.
    """

    def __init__(
        self,
        fields: Sequence[FieldSpec],
        *,
        entries: int,
        device: torch.device | str = "cpu",
    ) -> None:
        names = [field.name for field in fields]
        if len(set(names)) != len(names):
            raise ValueError(f"KV field names repeat: {sorted(names)}")
        if entries < 1:
            raise ValueError(f"a KV pool needs at least 1 entry, not {entries}")
        self.fields = tuple(fields)
        self.entries = entries
        self.bytes = (entries + 1) * entry_bytes(fields) + spare_bytes(fields)
        self.views = carve(_zeroed(self.bytes, torch.device(device)), self.fields, entries=entries)

    @property
    def entry_bytes(self) -> int:
        """Size of one entry with all its fields."""
        return entry_bytes(self.fields)


def carve(
    buffer: torch.Tensor, fields: Sequence[FieldSpec], *, entries: int
) -> dict[str, torch.Tensor]:
    """Views of a zeroed uint8 buffer by field, shaped as KvPool says.

    Raises ValueError for a buffer of another size than the fields' price: a slice of one that
    is too short would be cut without a word.
    """
    priced = (entries + 1) * entry_bytes(fields) + spare_bytes(fields)
    if buffer.numel() != priced:
        raise ValueError(f"a pool priced at {priced} bytes cannot be carved of {buffer.numel()}")
    views: dict[str, torch.Tensor] = {}
    offset = 0
    for field in fields:
        units = entries + 1 + field.spare_units
        used = buffer[offset : offset + units * field.unit_bytes].view(field.dtype)
        view = used.view(units, field.rows_per_entry, *field.row_shape)
        if field.fill:
            view.fill_(field.fill)
        views[field.name] = view
        offset += units * align(field.unit_bytes)
    if offset != priced:
        raise RuntimeError(f"carved {offset} bytes of a pool priced at {priced}")
    return views


def _zeroed(size: int, device: torch.device) -> torch.Tensor:
    """``size`` zero bytes at an ALIGNMENT boundary; on the host untouched: calloc maps pages
    lazily, where ``torch.zeros`` would write, and so commit, all of them."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=torch.uint8, device=device)
    raw = np.zeros(size + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return torch.from_numpy(raw[start : start + size])
