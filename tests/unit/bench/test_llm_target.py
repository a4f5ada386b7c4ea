"""Both forms of our service, over a scripted service on a real socket."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_servers import BROKEN, DELAYED, REFUSED, SILENT, fake_llm

from bench.load.lengths import Fixed
from bench.load.record import Record, RequestFailed
from bench.load.targets.llm_service import GenerateManyTarget, GenerateTarget
from bench.load.workload import Job, Workload

SHAPE = Workload(prompt_tokens=Fixed(4), output_tokens=Fixed(6), temperature=0.5, top_k=7)


@pytest.fixture(params=[GenerateTarget, GenerateManyTarget])
async def rig(request):
    """The fake service and an opened target of each form."""
    async with fake_llm() as (service, address):
        target = request.param(address, SHAPE)
        await target.open()
        yield service, target
        await target.close()


def record(kind: int, **values) -> Record:
    job = Job(**{"index": 0, "prompt_ids": (kind, 8, 9), "output_tokens": 6, **values})
    return Record(job, sent=0.0, due=0.0)


async def test_pieces_and_totals_are_the_services_own(rig):
    _, target = rig
    made = record(99)
    await target.run(made)
    assert made.pieces == [2, 1, 1, 1, 1]
    assert made.arrivals == sorted(made.arrivals)
    assert made.finish_reason == "FINISH_REASON_LENGTH"
    assert made.ended is not None
    assert (made.ended.prompt_tokens, made.ended.cached_tokens) == (3, 1)
    assert made.output_tokens == 6


async def test_the_request_carries_the_job(rig):
    service, target = rig
    await target.run(record(99, tenant="blue", batch=True, deadline_s=30.0, seed=5))
    if service.starts:
        start = service.starts[0]
        request = start.request
        assert (start.tenant, start.batch, start.timeout.seconds) == ("blue", True, 30)
    else:
        request, metadata = service.seen[0], service.metadata[0]
        assert metadata["x-antiphon-tenant"] == "blue"
        assert metadata["x-antiphon-priority"] == "batch"
    assert list(request.tokens.ids) == [99, 8, 9]
    assert request.stop.ignore_eos
    assert request.sampling.seed == 5
    assert request.sampling.top_k == 7
    assert request.sampling.temperature == pytest.approx(0.5)


async def test_a_refusal_keeps_reason_status_and_retry(rig):
    _, target = rig
    with pytest.raises(RequestFailed) as caught:
        await target.run(record(REFUSED))
    assert (caught.value.reason, caught.value.status) == ("QUEUE_FULL", "RESOURCE_EXHAUSTED")
    assert caught.value.retry_after == 1.5


@pytest.mark.parametrize("leave_after", [0, 3])
async def test_leaving_reaches_the_service(rig, leave_after):
    service, target = rig
    made = record(DELAYED, output_tokens=5000, cancel_after=leave_after)
    await target.run(made)
    assert made.ended is None
    assert leave_after <= made.streamed_tokens < 100
    if leave_after:
        await asyncio.wait_for(service.cancelled.acquire(), 10)


async def test_a_cancelled_task_reaches_the_service(rig):
    service, target = rig
    task = asyncio.create_task(target.run(record(SILENT)))
    async with asyncio.timeout(10):
        while not (service.seen or service.starts):
            await asyncio.sleep(0.002)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.wait_for(service.cancelled.acquire(), 10)


async def test_a_stream_without_terminal_ends_without_one():
    async with fake_llm() as (_, address):
        target = GenerateTarget(address, SHAPE)
        await target.open()
        made = record(BROKEN)
        await target.run(made)
        await target.close()
    assert made.ended is None
    assert made.pieces == [2]


async def test_requests_of_one_stream_do_not_mix(rig):
    _, target = rig
    records = [record(DELAYED, output_tokens=3 + n) for n in range(12)]
    await asyncio.gather(*(target.run(item) for item in records))
    assert [item.streamed_tokens for item in records] == [3 + n for n in range(12)]
    assert all(item.ended is not None for item in records)


async def test_the_death_of_a_shared_stream_fails_its_requests_and_the_next_opens_another():
    async with fake_llm() as (service, address):
        target = GenerateManyTarget(address, SHAPE)
        await target.open()
        stream = target._streams[0]
        task = asyncio.create_task(target.run(record(SILENT)))
        async with asyncio.timeout(10):
            while not service.starts:
                await asyncio.sleep(0.002)
        await stream.close()
        with pytest.raises(RequestFailed, match="STREAM_ENDED"):
            await task
        made = record(99)
        await target.run(made)
        assert made.output_tokens == 6
        await target.close()


async def test_ids_beyond_the_models_vocabulary_are_refused_at_the_start():
    async with fake_llm() as (_, address):
        wide = Workload(prompt_tokens=Fixed(4), output_tokens=Fixed(6), vocabulary=(1, 50_000))
        target = GenerateTarget(address, wide)
        with pytest.raises(RequestFailed, match="vocabulary"):
            await target.open()
        await target.close()
