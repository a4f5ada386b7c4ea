"""Whether a device can record steps through a part of a model: a fact of the part's class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GraphAbility:
    """Kinds of steps whose device work is the same whenever their shape is: these can be
    recorded once and replayed."""

    decode: bool
    prefill: bool


def common_ability(parts: Iterable[object]) -> tuple[GraphAbility, dict[str, list[str]]]:
    """What all parts can, and for each kind of step the classes that cannot, by name.

    Raises TypeError for a part whose class does not say: it would pass for one that can.
    """
    classes = {type(part) for part in parts}
    declared: dict[str, GraphAbility] = {}
    for cls in classes:
        ability = getattr(cls, "graph_ability", None)
        if not isinstance(ability, GraphAbility):
            raise TypeError(f"{cls.__name__} does not declare its graph_ability")
        declared[cls.__name__] = ability
    culprits = {
        "decode": sorted(name for name, ability in declared.items() if not ability.decode),
        "prefill": sorted(name for name, ability in declared.items() if not ability.prefill),
    }
    return GraphAbility(not culprits["decode"], not culprits["prefill"]), culprits
