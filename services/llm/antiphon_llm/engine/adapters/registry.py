"""Which adapters are loaded: their names, whose they are, and their slots."""

from __future__ import annotations

from dataclasses import dataclass

from .refusal import AdapterRefused

Owner = str | None
"""A tenant, or None for what every tenant may use."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A loaded adapter."""

    name: str
    owner: Owner
    slot: int
    version: int
    """Counts loads: what was cached for another adapter of this name is never found."""
    nbytes: int


class AdapterRegistry:
    """Names are the owner's: two tenants may use one for different adapters.

    Args:
        slots: that adapters may have, 1 to this number.
        byte_limit: of all adapters together.
    """

    def __init__(self, slots: int, byte_limit: int) -> None:
        self._free = list(range(slots, 0, -1))
        self._slots = slots
        self._byte_limit = byte_limit
        self._version = 0
        self._adapters: dict[tuple[Owner, str], Adapter] = {}
        self._reserved: set[tuple[Owner, str]] = set()

    def __len__(self) -> int:
        return len(self._adapters)

    @property
    def nbytes(self) -> int:
        """Bytes of all adapters."""
        return sum(adapter.nbytes for adapter in self._adapters.values())

    def find(self, tenant: str, name: str) -> Adapter | None:
        """The adapter that a tenant means by a name: its own, else one for everybody."""
        return self._adapters.get((tenant, name)) or self._adapters.get((None, name))

    def owned(self, owner: Owner, name: str) -> Adapter | None:
        """The owner's own adapter."""
        return self._adapters.get((owner, name))

    def reserve(self, owner: Owner, name: str) -> None:
        """Keeps a name and a slot for an adapter that is being read.

        Raises:
            AdapterRefused: ALREADY_EXISTS or SLOTS_FULL.
        """
        if (owner, name) in self._adapters or (owner, name) in self._reserved:
            raise AdapterRefused(
                f"an adapter {name!r} is loaded already", "ALREADY_EXISTS", field="name"
            )
        taken = self._slots - len(self._free) + len(self._reserved)
        if taken >= self._slots:
            raise AdapterRefused(
                f"all {self._slots} slots of adapters are taken ([llm] adapter_slots); unload one",
                "SLOTS_FULL", limit=self._slots, observed=taken,
            )  # fmt: skip
        self._reserved.add((owner, name))

    def forgo(self, owner: Owner, name: str) -> None:
        """Gives a reservation back."""
        self._reserved.discard((owner, name))

    def add(self, owner: Owner, name: str, nbytes: int) -> Adapter:
        """Turns a reservation into an adapter.

        Raises:
            AdapterRefused: MEMORY_PRESSURE; the reservation stays.
        """
        held = self.nbytes
        if held + nbytes > self._byte_limit:
            raise AdapterRefused(
                f"the adapter has {nbytes} bytes and the loaded ones {held}, at most "
                f"{self._byte_limit} are held ([llm] adapter_bytes); unload one",
                "MEMORY_PRESSURE", limit=self._byte_limit, observed=held + nbytes,
            )  # fmt: skip
        self._reserved.remove((owner, name))
        self._version += 1
        adapter = Adapter(name, owner, self._free.pop(), self._version, nbytes)
        self._adapters[owner, name] = adapter
        return adapter

    def drop(self, adapter: Adapter) -> None:
        """Forgets the name; the slot stays taken until :meth:`vacate`."""
        del self._adapters[adapter.owner, adapter.name]

    def vacate(self, adapter: Adapter) -> None:
        """The slot of a dropped adapter is empty."""
        self._free.append(adapter.slot)
