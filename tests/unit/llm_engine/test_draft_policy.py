"""When to draft and how deep: costs, acceptance, valve, and what is counted."""

from __future__ import annotations

import pytest
from antiphon_llm.speculation.depth import Acceptance, DepthPolicy
from antiphon_llm.speculation.telemetry import DraftTelemetry
from antiphon_llm.speculation.valve import Measured, Open, UpTo, Valve, valve_for


def measured_policy(rows: int, costs: dict[int, float]) -> DepthPolicy:
    policy = DepthPolicy()
    for width, seconds in costs.items():
        for _ in range(5):
            policy.costs.took(rows, width, seconds)
    return policy


class TestDepth:
    def test_it_maximises_expected_tokens_per_second(self) -> None:
        costs = {1: 1.0, 2: 1.05, 3: 1.1, 4: 1.15, 5: 1.2}
        policy = measured_policy(1, costs)
        for share in (0.05, 0.3, 0.6, 0.9):
            rates = {
                depth: sum(share**power for power in range(depth + 1)) / costs[1 + depth]
                for depth in range(5)
            }
            assert policy.choose(1, [4], [share]) == max(rates, key=lambda depth: rates[depth])

    def test_rows_without_a_proposal_pay_for_the_others(self) -> None:
        policy = measured_policy(8, {1: 1.0, 5: 1.5})
        assert policy.choose(8, [4] * 8, [0.8] * 8) == 4
        assert policy.choose(8, [4], [0.8]) == 0

    def test_a_free_step_drafts_all(self) -> None:
        assert DepthPolicy().choose(2, [3, 1], [0.5, 0.5]) == 3
        assert DepthPolicy().choose(2, [], []) == 0

    def test_costs_between_measured_widths_lie_on_a_line(self) -> None:
        costs = measured_policy(4, {1: 1.0, 5: 3.0}).costs
        assert [costs.seconds(4, width) for width in (1, 2, 3, 5, 8)] == [1.0, 1.5, 2.0, 3.0, 3.0]
        assert costs.seconds(7, 3) == 2.0, "the same power of two"
        assert costs.seconds(8, 3) == 1.0, "nothing is known of it"

    def test_one_slow_step_does_not_count(self) -> None:
        policy = measured_policy(1, {1: 1.0, 2: 1.1})
        policy.costs.took(1, 2, 50.0)
        assert policy.choose(1, [1], [0.5]) == 1

    def test_the_other_choice_is_tried_now_and_then(self) -> None:
        policy = measured_policy(1, {1: 1.0, 4: 9.0})
        tried = [policy.choose(1, [3], [0.9], probe=policy.probes(1)) for _ in range(640)]
        assert tried.count(3) == 12 and tried.count(0) == 628
        assert tried[:3] == [3, 3, 0]
        policy = measured_policy(1, {1: 1.0, 4: 1.0})
        assert policy.choose(1, [3], [0.9], probe=True) == 0


class TestAcceptance:
    def test_it_follows_the_latest_drafts(self) -> None:
        acceptance = Acceptance(0.75, weight=8.0, memory=0.98)
        assert acceptance.share == 0.75
        for _ in range(200):
            acceptance.took(0, 1)
        assert acceptance.share < 0.12
        for _ in range(200):
            acceptance.took(4, 0)
        assert acceptance.share > 0.9

    def test_a_request_begins_with_what_others_have(self) -> None:
        everyone = Acceptance(0.75, weight=8.0, memory=0.98)
        one = Acceptance(everyone, weight=4.0, memory=0.9)
        for _ in range(200):
            everyone.took(0, 1)
        assert one.share == everyone.share
        for _ in range(5):
            one.took(4, 0)
        assert one.share > 0.75 > everyone.share


class TestValve:
    @pytest.mark.parametrize(
        ("setting", "dense", "kind"),
        [("off", False, Open), ("auto", False, Measured), ("auto", True, Open),
         ("on:3", True, UpTo)],
    )  # fmt: skip
    def test_names(self, setting: str, dense: bool, kind: type[Valve]) -> None:
        assert type(valve_for(setting, dense=dense)) is kind

    @pytest.mark.parametrize("setting", ["", "on", "on:", "on:0", "on:x", "on:-1", "maybe"])
    def test_other_names_are_refused(self, setting: str) -> None:
        with pytest.raises(ValueError, match="draft_valve"):
            valve_for(setting, dense=True)

    def test_up_to_a_number_of_rows(self) -> None:
        valve = UpTo(3)
        assert [rows for rows in range(1, 6) if valve.open(rows)] == [1, 2, 3]

    @staticmethod
    def run(valve: Valve, steps: int, seconds: dict[bool, float], rows: int = 8) -> float:
        """Share of the steps that drafted."""
        drafted = 0
        for _ in range(steps):
            arm = valve.open(rows)
            drafted += arm
            valve.took(rows, 100, seconds[arm])
        return drafted / steps

    def test_it_shuts_where_drafting_is_slower_and_opens_again(self) -> None:
        valve = Measured()
        slower = {True: 1.3, False: 1.0}
        assert self.run(valve, 1000, slower) > 0.95, "one probe is not enough"
        self.run(valve, 2000, slower)
        assert self.run(valve, 2000, slower) < 0.05
        assert valve.open(64), "another load"
        self.run(valve, 1000, {True: 0.8, False: 1.0})
        assert self.run(valve, 2000, {True: 0.8, False: 1.0}) > 0.95

    def test_it_stays_as_it_is_within_the_dead_band(self) -> None:
        valve = Measured()
        assert self.run(valve, 5000, {True: 1.02, False: 1.0}) > 0.95


def test_telemetry_counts_rows_without_drafts_too() -> None:
    telemetry = DraftTelemetry(3)
    telemetry.row((5, 6, 7), 3)  # Two accepted.
    telemetry.row((5, -1, -1), 1)  # Refused.
    telemetry.row((), 1)
    telemetry.undrafted("no proposal")
    assert telemetry.counters() == {
        "draft: row steps": 3, "draft: tokens": 5,
        "draft: proposed 1": 2, "draft: accepted 1": 1,
        "draft: proposed 2": 1, "draft: accepted 2": 1,
        "draft: proposed 3": 1, "draft: accepted 3": 0,
        "draft: none, no proposal": 1,
    }  # fmt: skip
    assert (telemetry.proposed, telemetry.accepted) == (4, 2)
