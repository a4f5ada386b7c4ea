"""What decides over a step's drafts: who may, whether it pays, and what is learned from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon_llm.engine.request import Request
from antiphon_llm.engine.runner import StepResult
from antiphon_llm.engine.scheduler import Scheduler
from antiphon_llm.engine.speculating import Speculation
from antiphon_llm.messages import Sampling
from antiphon_llm.sampler.draw import Draw
from antiphon_llm.sampler.row import SamplerRow
from antiphon_llm.speculation.ngram import NgramDrafter
from antiphon_llm.speculation.valve import UpTo

from .drafters import Oracle
from .scheduling import make_request, make_scheduler, step

ANSWER = [n % 997 for n in range(700)]
COSTS = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 1.4}
"""Seconds of a step by width."""


def decoding(count: int, depths: Mapping[int, int] | None = None) -> Scheduler:
    scheduler = make_scheduler(
        entries=2000, context_limit=800, max_rows=8, step_tokens=64, prefill_chunk=64
    )
    for sequence in range(1, count + 1):
        request = make_request(sequence, 3, 700)
        asked = (depths or {}).get(sequence, -1)
        sampling = Sampling(draft_depth=asked)
        request.sampler = SamplerRow(
            sampling, choice=0, prompt_ids=[1], end_ids=[], vocabulary=2000
        )
        scheduler.enqueue(request)
    while len(scheduler.next_decodes()) < count:
        step(scheduler)
    return scheduler


def run(scheduler: Scheduler, speculation: Speculation, tokens: Sequence[int], right: bool) -> int:
    """One step in which every draft is right or none; its depth."""
    speculation.propose(scheduler.next_decodes())
    plan = scheduler.plan()
    scheduler.advance(plan)
    result = StepResult()
    for row in plan.rows:
        count = row.proposed + 1 if right else 1
        first = row.request.outputs
        draws = [Draw(token) for token in tokens[first : first + count]]
        result.draws.append((row, draws))
        scheduler.trim(row, len(draws))
        for drawn in draws:
            row.request.commit(drawn.token)
    scheduler.settle(plan)
    scheduler.check_integrity()
    speculation.took(plan, result, COSTS[1 + plan.draft_depth])
    return plan.draft_depth


class Knowing(Oracle):
    def __init__(self) -> None:
        super().__init__({f"r{n}": ANSWER for n in range(9)})


def test_right_drafts_go_to_the_whole_depth() -> None:
    scheduler, speculation = decoding(2), Speculation(Knowing(), depth=4, adaptive=True)
    depths = [run(scheduler, speculation, ANSWER, right=True) for _ in range(70)]
    assert depths == [0, 0, *[4] * 61, 0, *[4] * 6]
    assert speculation.counters()["draft: none, probe"] == 3


def test_wrong_drafts_are_given_up_and_tried_again_now_and_then() -> None:
    scheduler, speculation = decoding(2), Speculation(Knowing(), depth=4, adaptive=True)
    depths = [run(scheduler, speculation, ANSWER, right=False) for _ in range(300)]
    assert depths[2] == 4 and sum(map(bool, depths[20:])) <= 10
    assert speculation.counters()["draft: none, does not pay"] > 200
    # And taken up again once they are right.
    depths = [run(scheduler, speculation, ANSWER, right=True) for _ in range(80)]
    assert sum(map(bool, depths[-10:])) >= 9


def test_one_request_s_failures_are_not_another_s() -> None:
    scheduler, speculation = decoding(2), Speculation(Knowing(), depth=4, adaptive=True)
    one, other = scheduler.next_decodes()
    for width, seconds in COSTS.items():
        speculation._policy.costs.took(2, width, seconds)
    for _ in range(40):
        speculation._acceptance_of(one).took(0, 1)
        speculation._acceptance_of(other).took(4, 0)
    assert speculation._choose([one, other], [one], [4]) == 0
    assert speculation._choose([one, other], [other], [4]) == 4
    speculation.release(one)
    assert speculation._choose([one, other], [one], [4]) == 4, "nothing is remembered of it"


def test_requests_draft_as_deep_as_they_asked() -> None:
    scheduler = decoding(3, {1: 0, 2: 2})
    speculation = Speculation(Knowing(), depth=4)
    speculation.propose(scheduler.next_decodes())
    assert [len(request.drafts) for request in scheduler.next_decodes()] == [0, 2, 4]
    scheduler = decoding(2, {1: 0, 2: 0})
    assert run(scheduler, speculation, ANSWER, right=True) == 0
    assert speculation.counters()["draft: none, not asked for, or near the end"] == 1


def test_the_valve_shuts_a_load_out() -> None:
    speculation = Speculation(Knowing(), depth=4, valve=UpTo(2))
    assert run(decoding(3), speculation, ANSWER, right=True) == 0
    assert run(decoding(2), speculation, ANSWER, right=True) == 4
    assert not speculation.expects(decoding(3).next_decodes())
    assert speculation.expects(decoding(2).next_decodes())
    assert speculation.counters()["draft: none, load"] == 1


def test_a_step_in_flight_is_waited_for_only_where_drafts_are_likely() -> None:
    speculation = Speculation(NgramDrafter(), depth=4)
    scheduler = decoding(2)
    one, other = scheduler.next_decodes()
    one.tokens[:], other.tokens[:] = [1, 2, 3, 4], [5, 6, 7, 8]
    assert not speculation.expects([one, other])
    other.tokens[:] = [5, 6, 5, 6]
    assert speculation.expects([one, other])


def test_without_proposals_the_step_is_plain() -> None:
    class Silent(Knowing):
        def _propose(self, request: Request, depth: int) -> list[int]:
            return []

    speculation = Speculation(Silent(), depth=4)
    assert run(decoding(2), speculation, ANSWER, right=True) == 0
    counters = speculation.counters()
    assert counters["draft: none, no proposal"] == 1
    assert counters["draft: row steps"] == counters["draft: tokens"] == 2
