"""Lengths and jobs of the load generator."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from itertools import islice

import pytest

from bench.load.lengths import Fixed, LogNormal, Uniform, parse_lengths
from bench.load.workload import Workload


def workload(**values) -> Workload:
    return Workload(**{"prompt_tokens": Fixed(8), "output_tokens": Fixed(4), **values})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512", Fixed(512)),
        ("fixed:3", Fixed(3)),
        ("uniform:2:9", Uniform(2, 9)),
        ("lognormal:200:0.7:900", LogNormal(200, 0.7, 900)),
    ],
)
def test_lengths_are_read_as_written(text, expected):
    assert parse_lengths(text) == expected


@pytest.mark.parametrize(
    "text", ["", "0", "-3", "uniform:9:2", "uniform:0:2", "lognormal:200:-1:9", "zipf:3", "1:2"]
)
def test_a_length_that_makes_no_sense_is_refused_with_the_forms(text):
    with pytest.raises(ValueError, match="uniform:LOW:HIGH"):
        parse_lengths(text)


def test_draws_keep_to_their_distribution():
    chance = random.Random(1)
    uniform = [Uniform(3, 7).draw(chance) for _ in range(2000)]
    assert set(uniform) == {3, 4, 5, 6, 7}
    long_tailed = [LogNormal(200, 0.8, 1500).draw(chance) for _ in range(4000)]
    assert max(long_tailed) == 1500
    assert min(long_tailed) >= 1
    assert statistics.median(long_tailed) == pytest.approx(200, rel=0.08)
    assert statistics.mean(long_tailed) > 1.2 * statistics.median(long_tailed)


def test_one_seed_is_one_sequence_of_jobs():
    shape = workload(
        prompt_tokens=Uniform(1, 50),
        cancel_share=0.3,
        deadline_share=0.3,
        tenants=3,
        batch_share=0.5,
    )
    first = list(islice(shape.jobs(), 50))
    assert first == list(islice(shape.jobs(), 50))
    other = workload(prompt_tokens=Uniform(1, 50), seed=1)
    assert first != list(islice(other.jobs(), 50))


def test_shares_come_out_as_asked_and_cancels_fall_inside_the_output():
    shape = workload(
        output_tokens=Uniform(2, 30),
        cancel_share=0.25,
        deadline_share=0.5,
        deadline_s=(1.0, 2.0),
        tenants=4,
        batch_share=0.1,
    )
    jobs = list(islice(shape.jobs(), 4000))
    cancelled = [job for job in jobs if job.cancel_after is not None]
    assert len(cancelled) / len(jobs) == pytest.approx(0.25, abs=0.03)
    assert all(0 <= job.cancel_after < job.output_tokens for job in cancelled)
    assert 0 in {job.cancel_after for job in cancelled}
    bounded = [job.deadline_s for job in jobs if job.deadline_s is not None]
    assert len(bounded) / len(jobs) == pytest.approx(0.5, abs=0.03)
    assert 1.0 <= min(bounded) <= max(bounded) <= 2.0
    assert sum(job.batch for job in jobs) / len(jobs) == pytest.approx(0.1, abs=0.03)
    assert set(Counter(job.tenant for job in jobs)) == {f"tenant-{n}" for n in range(4)}


def test_prompts_of_one_prefix_begin_alike_and_go_on_apart():
    shape = workload(prefixes=2, prefix_tokens=64, prefix_share=0.5)
    jobs = list(islice(shape.jobs(), 400))
    by_prefix: dict[int, set[tuple[int, ...]]] = {}
    for job in jobs:
        by_prefix.setdefault(job.prefix, set()).add(job.prompt_ids[:64])
    assert {len(by_prefix[0]), len(by_prefix[1])} == {1}
    assert by_prefix[0] != by_prefix[1]
    assert all(len(job.prompt_ids) == (8 if job.prefix == -1 else 72) for job in jobs)
    assert len({job.prompt_ids[64:] for job in jobs if job.prefix == 0}) > 50
    assert sum(job.prefix >= 0 for job in jobs) / len(jobs) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"cancel_share": 1.5}, "cancel_share"),
        ({"prefixes": 2}, "prefix_tokens"),
        ({"deadline_s": (3.0, 1.0)}, "deadline_s"),
        ({"vocabulary": (5, 5)}, "vocabulary"),
        ({"tenants": -1}, "tenants"),
    ],
)
def test_a_workload_that_contradicts_itself_is_refused(values, name):
    with pytest.raises(ValueError, match=name):
        workload(**values).check()
