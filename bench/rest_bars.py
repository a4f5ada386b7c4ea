"""`make bars-rest`: the claims of the REST side that this machine can measure, one BAR line each.

``make bench-gateway`` runs those that measure speed alone. Name some to run only these:
``python -m bench.rest_bars first_byte stalled``. LiteLLM's proxy and vLLM's own front stand beside
the gateway where ``--litellm-python`` and ``--vllm-python`` name a Python that has them.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from antiphon_core.logs import configure_logging

from bench.report import Report
from bench.rest import aborts, latency, peers, stalled, streams, transport
from bench.rest.claims import Outcome, run_tests

RUN_DIR = Path("run/bars-rest")
PROBES = 400
STREAMS = 32
TOKENS = 500
IDLE_STREAMS = 2000
TRANSPORT_STREAMS = 64
TRANSPORT_TOKENS = 120
KILLS = 20


async def first_byte(report: Report) -> None:
    """What the gateway adds to the first byte while it is half busy."""
    found = await latency.added_first_byte(PROBES)
    report.add("added_first_byte_p50", found["added_p50"], found)
    report.add("added_first_byte_p99", found["added_p99"])


async def chunks(report: Report) -> None:
    """Streamed chunks a second of one core, and what one costs."""
    cost = await streams.stream_cost(STREAMS, TOKENS)
    report.add("stream_chunks_per_core_second", cost["frames_per_core_second"], cost)
    report.add("stream_cpu_per_chunk", cost["cpu_us_per_frame"])


async def idle(report: Report) -> None:
    """Memory of streams that wait."""
    found = await streams.idle_stream_bytes(IDLE_STREAMS)
    report.add("idle_stream_memory", found["bytes_per_stream"] / 1024, found)


async def edge(report: Report) -> None:
    """What Envoy adds to a small request."""
    found = await latency.edge_hop(RUN_DIR / "edge", 2000)
    report.add("edge_hop_p99", found["added_p99"], found)


async def stalled_reader(report: Report) -> None:
    """What a reader that takes nothing does to the others."""
    found = await stalled.stalled_reader_effect()
    print(f"  stalled reader: the same without one, twice: x {found['noise_ratio']:.3f}")
    report.add("stalled_reader_p99", found["ratio"], found)


async def many(report: Report) -> None:
    """GenerateMany beside Generate: with all that is around the calls, and alone."""
    whole = await transport.whole_path(TRANSPORT_STREAMS, TRANSPORT_TOKENS)
    alone = await transport.grpc_alone(TRANSPORT_STREAMS, 400)
    for title, costs in (("gateway and llm front", whole), ("the calls alone", alone)):
        for name, cost in costs.items():
            figures = ", ".join(f"{key} {value:.3g}" for key, value in cost.items())
            print(f"  {title}, {name}: {figures}")
    total = whole["many"]["total_us"]
    report.add("multiplexed_cpu_per_token", total, whole)
    report.add("multiplexed_cpu_saving", whole["generate"]["total_us"] / total)
    ratio = alone["generate"]["total_us"] / alone["many"]["total_us"]
    report.add("multiplexed_calls_saving", ratio, alone)


async def start(report: Report) -> None:
    """The gateway's imports."""
    report.add("import_cpu", await asyncio.to_thread(streams.import_cpu))


async def leavers(report: Report) -> None:
    """What a thousand aborted streams leave in the engine."""
    found = await aborts.leftovers(RUN_DIR / "aborts")
    report.add("abort_leftovers", found["entries"] + found["requests"], found)


async def kills(report: Report) -> None:
    """A batch whose gateway is killed at twenty of its rows."""
    outcome = await _tests("tests/rpc/gateway/test_batch_kill.py", "-m", "slow")
    report.add("batch_kills_survived", KILLS if outcome.passed else 0, vars(outcome))


async def proofs(report: Report) -> None:
    """The edge's behaviour with the real binary, affinity among it."""
    names = ("balancing", "bytes", "transport")
    outcome = await _tests(*(f"tests/e2e/test_envoy_{name}.py" for name in names))
    report.add("edge_proofs_failed", len(outcome.failed), vars(outcome))
    report.add("affinity_share", outcome.properties.get("affinity_share", 0.0))
    report.add("frame_delay", outcome.properties.get("added_frame_ms", float("inf")))


async def fuzz(report: Report) -> None:
    """Requests made of the OpenAPI document that were answered as it says."""
    outcome = await _tests("tests/rpc/gateway/test_openapi_cases.py", "-m", "slow")
    requests = sum(outcome.properties.values())
    report.add("schemathesis_cases", 0 if outcome.failed else requests, vars(outcome))


MEASUREMENTS: dict[str, Callable[[Report], Awaitable[None]]] = {
    "first_byte": first_byte,
    "chunks": chunks,
    "idle": idle,
    "edge": edge,
    "stalled": stalled_reader,
    "many": many,
    "start": start,
    "leavers": leavers,
    "kills": kills,
    "proofs": proofs,
    "fuzz": fuzz,
}
SPEED = ("first_byte", "chunks", "idle", "edge", "stalled", "many", "start")


async def _tests(*selection: str) -> Outcome:
    outcome = await asyncio.to_thread(run_tests, *selection)
    for name in outcome.failed:
        print(f"  failed: {name}")
    return outcome


async def beside_peers(options: argparse.Namespace) -> None:
    """Prints the peers' figures; they are no bars of ours."""
    if options.litellm_python:
        found = await peers.litellm(options.litellm_python, RUN_DIR / "litellm", 200, 16, 60)
        _print("LiteLLM's proxy", found)
    if options.vllm_python:
        tokens = TRANSPORT_TOKENS
        found = await peers.vllm(options.vllm_python, RUN_DIR / "vllm", TRANSPORT_STREAMS, tokens)
        _print("vLLM's server process", found)


def _print(peer: str, found: dict[str, float]) -> None:
    print(f"  {peer}: " + ", ".join(f"{key} {value:.4g}" for key, value in found.items()))


async def main(names: list[str], options: argparse.Namespace) -> int:
    """Runs the measurements; the exit status."""
    report = Report("rest")
    for name in names:
        started = time.monotonic()
        await MEASUREMENTS[name](report)
        print(f"  {name}: {time.monotonic() - started:.0f} s", flush=True)
    started = time.monotonic()
    await beside_peers(options)
    print(f"  peers: {time.monotonic() - started:.0f} s")
    return report.finish()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    parser = argparse.ArgumentParser(prog="python -m bench.rest_bars", description=__doc__)
    parser.add_argument("measurements", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    parser.add_argument("--speed", action="store_true", help="what `make bench-gateway` measures")
    parser.add_argument("--litellm-python", default="", help="a Python that has litellm[proxy]")
    parser.add_argument("--vllm-python", default="", help="a Python that has vllm")
    given = parser.parse_args()
    chosen = given.measurements or list(SPEED if given.speed else MEASUREMENTS)
    if unknown := set(chosen) - set(MEASUREMENTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    configure_logging("bench", level="error")
    sys.exit(asyncio.run(main(chosen, given)))
