"""Where a device's memory goes, and what is left for keys and values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One owner's part of the device."""

    name: str
    bytes: int
    provenance: str
    """measured, derived or configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLedger:
    """The device's memory before the KV pool; bytes.

    ``kv_room = share total - weights - buffers - activations - graphs - drafter - reserved -
    foreign``.
    """

    total: int
    share: float
    foreign: int
    """Held by others when the engine started, and by the driver for this process."""
    weights: int
    buffers: int
    """The runner's fixed tensors: tables, metadata, logits, sampler."""
    activations: int
    """Most that a full-width prefill and a decode of all rows took beside them."""
    graphs: int
    reserved: int
    drafter: int = 0
    """What a drafter takes beside its weights and its part of the KV pool."""

    @property
    def rows(self) -> list[LedgerRow]:
        """Every part with where its number comes from; they and the room sum to the share."""
        return [
            LedgerRow("foreign", self.foreign, "measured"),
            LedgerRow("weights", self.weights, "measured"),
            LedgerRow("buffers", self.buffers, "measured"),
            LedgerRow("activations", self.activations, "measured"),
            LedgerRow("graphs", self.graphs, "measured"),
            LedgerRow("drafter", self.drafter, "derived"),
            LedgerRow("reserved", self.reserved, "configured"),
        ]

    @property
    def kv_room(self) -> int:
        """What the KV pool and its safety margin may take; negative when the rest is too much."""
        return int(self.share * self.total) - sum(row.bytes for row in self.rows)

    def table(self) -> str:
        """One line for each part."""
        lines = [f"{row.name:12s} {row.bytes:>16,d}  {row.provenance}" for row in self.rows]
        head = f"{'share':12s} {int(self.share * self.total):>16,d}  of {self.total:,d}"
        return "\n".join([head, *lines, f"{'kv room':12s} {self.kv_room:>16,d}  derived"])
