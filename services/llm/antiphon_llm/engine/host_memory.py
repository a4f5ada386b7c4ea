"""What an engine takes of the host's memory, owner by owner, before and after it is taken."""

from __future__ import annotations

from dataclasses import dataclass


class LedgerMismatch(RuntimeError):
    """An owner holds another amount than was foreseen: a defect of the engine."""


@dataclass(frozen=True, slots=True)
class HostRow:
    """One owner's memory; bytes."""

    name: str
    predicted: int
    provenance: str
    """measured, derived or configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLedger:
    """The memory that is free once the weights are loaded, and who gets it; bytes.

    ``kv_room = share available - workspace - logits - drafter - adapters - reserved - parked``. The
    weights, a drafter's too, are held already and so no part of ``available``.
    """

    available: int
    share: float
    weights: int
    workspace: int
    logits: int
    reserved: int
    parked: int
    drafter: int = 0
    adapters: int = 0

    @property
    def rows(self) -> list[HostRow]:
        """Every owner but the KV pool."""
        return [
            HostRow("weights", self.weights, "measured"),
            HostRow("workspace", self.workspace, "derived"),
            HostRow("logits", self.logits, "derived"),
            HostRow("drafter", self.drafter, "derived"),
            HostRow("adapters", self.adapters, "configured"),
            HostRow("reserved", self.reserved, "configured"),
            HostRow("parked", self.parked, "configured"),
        ]

    @property
    def kv_room(self) -> int:
        """What the KV pool and its safety margin may take; negative when the rest is too much."""
        taken = sum(row.predicted for row in self.rows if row.name != "weights")
        return int(self.share * self.available) - taken

    def table(self) -> str:
        """One line for each owner."""
        head = f"{'share':12s} {int(self.share * self.available):>16,d}  of {self.available:,d}"
        lines = [f"{row.name:12s} {row.predicted:>16,d}  {row.provenance}" for row in self.rows]
        return "\n".join([head, *lines, f"{'kv room':12s} {self.kv_room:>16,d}  derived"])

    def check(self, allocated: dict[str, int]) -> None:
        """Compares what owners hold with what was foreseen; LedgerMismatch names the first."""
        predicted = {row.name: row.predicted for row in self.rows}
        for name, held in allocated.items():
            if held != predicted[name]:
                raise LedgerMismatch(f"{name} holds {held} bytes, {predicted[name]} were foreseen")
