"""What all parts of a model can, and who stands in the way."""

from __future__ import annotations

import pytest
from antiphon_nn.graph_ability import GraphAbility, common_ability


class Both:
    graph_ability = GraphAbility(decode=True, prefill=True)


class DecodeOnly:
    graph_ability = GraphAbility(decode=True, prefill=False)


class Neither(DecodeOnly):
    graph_ability = GraphAbility(decode=False, prefill=False)


def test_one_part_that_cannot_is_enough_and_is_named() -> None:
    assert common_ability([Both(), Both()]) == (
        GraphAbility(decode=True, prefill=True), {"decode": [], "prefill": []},
    )  # fmt: skip
    assert common_ability([Both(), DecodeOnly()]) == (
        GraphAbility(decode=True, prefill=False), {"decode": [], "prefill": ["DecodeOnly"]},
    )  # fmt: skip
    ability, culprits = common_ability([DecodeOnly(), Neither(), Both()])
    assert ability == GraphAbility(decode=False, prefill=False)
    assert culprits == {"decode": ["Neither"], "prefill": ["DecodeOnly", "Neither"]}


def test_a_class_that_does_not_say_is_refused() -> None:
    with pytest.raises(TypeError, match="object does not declare"):
        common_ability([Both(), object()])
