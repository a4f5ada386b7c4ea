"""`make bars-engine`: the engine's claims that this machine can measure, one BAR line each.

Every measurement starts an llm service of its own on the default model, drives it with
:mod:`bench.load` and takes ratios inside one run, so that a busy machine moves both sides.
Decode and prefill stand beside llama.cpp where ``--peer-python`` names a Python that has it.
Name some of them to run only these: ``python -m bench.engine_bars overload hop``.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from antiphon.llm.v1 import generate_pb2, llm_service_pb2
from antiphon_core.logs import configure_logging
from antiphon_core.rpc.streams import read_all, result

from bench import overload
from bench.load.drive import Arrivals, Run, drive
from bench.load.lengths import Fixed
from bench.load.summary import Objectives, percentile, summarise
from bench.load.targets.llm_service import GenerateManyTarget, GenerateTarget
from bench.load.workload import Workload
from bench.report import Report
from bench.scheduler import measure_all
from bench.service import LlmService, llm_service

RUN_DIR = Path("run/bars-engine")
PREFIX_TOKENS = 4096
PREFIX_CLIENTS = 32
EQUAL_REQUESTS = 24
BACKLOG_ROUNDS = 4
PROBES = 6
OVERLOAD_S = 60.0
CAPACITY_S = 12.0
HOPS = 400
PEER = "llama_cpp"
"""The measurement that another process makes: bench.llm_cpu."""


async def shared_prefix(report: Report) -> None:
    """32 clients behind one 4096-token beginning, against one cold prompt of the same length."""
    flags = ("--context-limit", "8192", "--max-rows", str(PREFIX_CLIENTS))
    async with llm_service(RUN_DIR / "shared_prefix", *flags) as service:
        cold = Workload(Fixed(PREFIX_TOKENS + 16), Fixed(4), seed=3)
        alone = await _driven(service, cold, Arrivals(clients=1, requests=3))
        shared = Workload(Fixed(16), Fixed(4), prefixes=1, prefix_tokens=PREFIX_TOKENS, seed=4)
        await _driven(service, shared, Arrivals(clients=1, requests=1))
        many = await _driven(service, shared, Arrivals(clients=PREFIX_CLIENTS, requests=128))
    cold_ttft, warm_ttft = _ttft_p50(alone), _ttft_p50(many)
    hits = [record.ended.cached_tokens for record in many.records if record.ended is not None]
    raw = {"cold_p50_s": cold_ttft, "shared_p50_s": warm_ttft, "cached_tokens": hits}
    report.add("shared_prefix_ttft_ratio", warm_ttft / cold_ttft, raw)
    full = sum((tokens or 0) >= PREFIX_TOKENS for tokens in hits)
    report.add("shared_prefix_hits", full / len(many.records))


async def overlap(report: Report) -> None:
    """The same requests with and without a step in flight: how many texts differ."""
    texts = []
    for depth in ("0", "1"):
        flags = ("--context-limit", "1024", "--overlap-depth", depth)
        async with llm_service(RUN_DIR / f"overlap-{depth}", *flags) as service:
            calls = [service.stub.Generate(_varied(number)) for number in range(EQUAL_REQUESTS)]
            answers = await asyncio.gather(*(read_all(call) for call in calls))
        texts.append(["".join(item.delta.text for item in answer) for answer in answers])
    pairs = zip(*texts, strict=True)
    report.add("overlap_different_texts", sum(first != second for first, second in pairs), texts)


async def backlog(report: Report) -> None:
    """First token of interactive requests with a backlog of batch work and without, in turns."""
    times: dict[bool, list[float]] = {False: [], True: []}
    async with llm_service(RUN_DIR / "backlog", "--context-limit", "1024") as service:
        for turn in range(BACKLOG_ROUNDS):
            for crowded in (False, True):
                work = Workload(Fixed(512), Fixed(16), seed=10 * turn + crowded)
                async with _batch_load(service) if crowded else _nothing():
                    run = await _driven(service, work, Arrivals(clients=1, requests=PROBES))
                times[crowded] += [r.ttft for r in run.records if r.ttft is not None]
    medians = {crowded: statistics.median(values) for crowded, values in times.items()}
    raw = {"alone_s": times[False], "crowded_s": times[True]}
    report.add("interactive_ttft_under_batch_ratio", medians[True] / medians[False], raw)


async def hop(report: Report) -> None:
    """Round trip of a call that needs the front alone while the engine prefills."""
    async with llm_service(RUN_DIR / "hop", "--context-limit", "4096") as service:
        prompts = Workload(Fixed(2048), Fixed(1), seed=5)
        load = asyncio.create_task(_driven(service, prompts, Arrivals(clients=2, seconds=600)))
        times = []
        try:
            await service.busy()
            for _ in range(HOPS):
                started = time.perf_counter()
                await result(service.stub.GetModel(llm_service_pb2.GetModelRequest()))
                times.append((time.perf_counter() - started) * 1000)
                await asyncio.sleep(0.02)
        finally:
            await _ended(load)
    report.add("rpc_hop_p99_during_prefill", percentile(sorted(times), 0.99), times)


async def overloaded(report: Report) -> None:
    """A minute at twice the capacity: what is refused, what is lost, what stays behind."""
    async with llm_service(RUN_DIR / "overload", *overload.SERVICE_FLAGS) as service:
        await service.idle()
        rate = overload.FACTOR * await overload.capacity(service.address, CAPACITY_S)
        run = await overload.overload(service.address, rate, OVERLOAD_S)
        status = await service.idle()
    summary = summarise(run.records, Objectives())
    summary["rate"] = rate
    errors = summary["errors"]
    report.add("overload_lost_terminals", summary["requests"]["lost"], summary)
    report.add("overload_refused", overload.refused(errors))
    report.add("overload_refusals_without_retry", overload.broken_refusals(errors))
    report.add("overload_unexpected_errors", len(overload.unexpected(errors)))
    report.add("overload_entries_left", status.kv_entries_used)


async def scheduler(report: Report) -> None:
    """The longest of the usual plans: 256 rows, 2000 queued, in three states of the pool."""
    timings = await asyncio.to_thread(measure_all)
    raw = [asdict(timing) for timing in timings]
    report.add("scheduler_plan_p99", max(timing.plan_p99 for timing in timings), raw)


MEASUREMENTS: dict[str, Callable[[Report], Awaitable[None]]] = {
    "scheduler": scheduler,
    "shared_prefix": shared_prefix,
    "overlap": overlap,
    "backlog": backlog,
    "hop": hop,
    "overload": overloaded,
}


async def _driven(service: LlmService, work: Workload, arrivals: Arrivals) -> Run:
    target = GenerateManyTarget(service.address, work)
    try:
        await target.open()
        run = await drive(target, work, arrivals)
    finally:
        await target.close()
    failed = [str(record.failure) for record in run.records if record.failure is not None]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    return run


@asynccontextmanager
async def _batch_load(service: LlmService):
    """More batch work than there are rows, for the block."""
    work = Workload(Fixed(256), Fixed(64), batch_share=1.0, seed=6)
    target = GenerateTarget(service.address, work)
    await target.open()
    task = asyncio.create_task(drive(target, work, Arrivals(clients=16, seconds=600)))
    try:
        await service.busy()
        yield
    finally:
        await _ended(task)
        await target.close()
        await service.idle()


@asynccontextmanager
async def _nothing():
    yield


async def _ended(task: asyncio.Task[Run]) -> None:
    """Cancels a load that runs beside a measurement; its own failure is not hidden."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _varied(number: int) -> generate_pb2.GenerateRequest:
    """Greedy and drawn, short and long, with and without a stop string."""
    greedy = number % 2 == 0
    sampling = generate_pb2.SamplingParams(temperature=0 if greedy else 0.8, seed=number)
    stop = generate_pb2.StopParams(max_tokens=8 + 4 * number, ignore_eos=number % 3 == 0)
    if number % 4 == 1:
        stop.strings.append(" the")
    text = f"{number} facts about the {('sea', 'moon', 'sun', 'wind')[number % 4]}: "
    return generate_pb2.GenerateRequest(text=text * (1 + number % 5), sampling=sampling, stop=stop)


def _ttft_p50(run: Run) -> float:
    return statistics.median(record.ttft for record in run.records if record.ttft is not None)


async def main(names: list[str]) -> int:
    """Runs the measurements; the exit status."""
    report = Report("engine")
    for name in names:
        await MEASUREMENTS[name](report)
    return report.finish()


def against_peer(peer_python: str) -> int:
    """Decode and prefill beside llama.cpp in a process of their own; its exit status."""
    command = [sys.executable, "-m", "bench.llm_cpu", "--repeats", "5"]
    if peer_python:
        command += ["--peer-python", peer_python]
    return subprocess.run(command).returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.engine_bars", description=__doc__)
    known = [*MEASUREMENTS, PEER]
    parser.add_argument("measurements", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--peer-python", default="", help="a Python that has llama-cpp-python")
    options = parser.parse_args()
    chosen = options.measurements or known
    if unknown := set(chosen) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    configure_logging("bench", level="error")
    own = [name for name in chosen if name != PEER]
    statuses = [asyncio.run(main(own))] if own else []
    if PEER in chosen:
        statuses.append(against_peer(options.peer_python))
    sys.exit(max(statuses))
