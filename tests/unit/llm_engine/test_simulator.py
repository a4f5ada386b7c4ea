"""Random schedules to their end through the real scheduler; see simulation.py for the rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .scenario import Arrival, Scenario, random_scenario
from .simulation import Simulation, fails, smallest

EXAMPLES, SCHEDULES = 100, 100


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 2**32))
def test_ten_thousand_random_schedules(start: int) -> None:
    for seed in range(start, start + SCHEDULES):
        scenario = random_scenario(seed)
        if failure := fails(scenario):
            small = smallest(scenario)
            pytest.fail(f"seed {seed}: {failure}\n{fails(small)} with {small}", pytrace=False)


def test_sharing_a_cached_entry_breaks_no_promise() -> None:
    """The second request computes the first one's prefix again, because it scores its prompt,
    and shares it when its own is published: then nobody can evict what was promised to the
    third, while launched steps still read the entries that are no longer needed."""
    stem = (6, 42, 38, 12, 24, 22, 32, 39, 4, 1)
    rest = (41, 21, 38, 0, 22, 36, 25)
    other = (33, 6, 23, 47, 0, 19, 42, 44, 30, 11, 26, 38, 26, 40, 4, 37, 1, 16, 35, 38, 33, 13,
             4, 35, 7)  # fmt: skip
    scenario = Scenario(
        arrivals=(
            Arrival(at=3, prompt=stem, max_tokens=3),
            Arrival(at=4, prompt=stem + rest, max_tokens=6, scored=True, cancel_after=8),
            Arrival(at=4, prompt=other, max_tokens=1),
        ),
        entries=13, rows=3, step_tokens=7, chunk=16, depth=1, at_once=False,
    )  # fmt: skip
    assert not fails(scenario)


def test_drafts_are_accepted_and_refused() -> None:
    accepted = sum(Simulation(random_scenario(seed)).run().drafted for seed in range(100))
    assert accepted > 200
