"""Which row of which pool each attention module has: one walk over the modules that were built.

A pool is the set of rows of one geometry; all pools lie in one buffer and share the entry ids.
Sizing counts the rows, binding reads them, and no layer number or config count comes between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from .fields import FieldSpec
from .pool import KvPool

Geometry = tuple[int, int]
"""(kv_heads, head_dim)."""
SIDES = ("keys", "values")


class RowMap:
    """``rows[geometry][module]`` is the module's row in the pool of its geometry.

    A row's two fields are named ``<module>.keys`` and ``<module>.values``: the name is the
    region's role, by which host copies find it again, for regions of equal size are alike.
    """

    def __init__(self, modules: Iterable[tuple[str, Geometry]]) -> None:
        self.rows: dict[Geometry, dict[str, int]] = {}
        self._geometries: dict[str, Geometry] = {}
        for module, geometry in modules:
            if module in self._geometries:
                raise ValueError(f"attention module {module!r} was built twice")
            self._geometries[module] = geometry
            rows = self.rows.setdefault(geometry, {})
            rows[module] = len(rows)

    def __iter__(self) -> Iterator[str]:
        """The modules in the order in which they were built."""
        return iter(self._geometries)

    def named(self, prefix: str) -> RowMap:
        """The same rows as modules ``<prefix><module>``, beside another model's in one pool."""
        return RowMap((prefix + module, geometry) for module, geometry in self._geometries.items())

    def fields(
        self, entry_tokens: int, dtype: torch.dtype, *, spare_units: int = 0
    ) -> list[FieldSpec]:
        """What one KV entry holds: keys and values of every row, pool by pool."""
        return [
            FieldSpec(f"{module}.{side}", entry_tokens, geometry, dtype, spare_units=spare_units)
            for geometry, rows in self.rows.items()
            for module in rows
            for side in SIDES
        ]

    def bind(self, pool: KvPool, module: str) -> tuple[torch.Tensor, torch.Tensor]:
        """A module's keys and values as slots of the pool, ``(slots, kv_heads, head_dim)`` each.

        Raises:
            LookupError: the module was not built when the rows were counted, or the pool was
                carved of other fields.
            ValueError: the pool holds rows of another geometry for it.
        """
        if module not in self._geometries:
            raise LookupError(
                f"attention module {module!r} has no row in the KV pool; known: {', '.join(self)}"
            )
        keys, values = (_field(pool, f"{module}.{side}") for side in SIDES)
        geometry = self._geometries[module]
        if tuple(keys.shape[2:]) != geometry or tuple(values.shape[2:]) != geometry:
            raise ValueError(
                f"attention module {module!r} caches {geometry}, its pool holds "
                f"{tuple(keys.shape[2:])} and {tuple(values.shape[2:])}"
            )
        return keys.flatten(0, 1), values.flatten(0, 1)


def _field(pool: KvPool, name: str) -> torch.Tensor:
    if name not in pool.views:
        raise LookupError(f"the KV pool has no field {name!r}")
    return pool.views[name]
