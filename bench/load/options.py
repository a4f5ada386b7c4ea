"""The command line of the load generator."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.load.drive import Arrivals
from bench.load.lengths import parse_lengths
from bench.load.summary import Objectives
from bench.load.targets import Target
from bench.load.targets.llm_service import GenerateManyTarget, GenerateTarget
from bench.load.targets.openai import OpenAiTarget
from bench.load.workload import Workload

EPILOG = """examples:
  our service, 32 clients, 4096 common tokens before each prompt:
    python -m bench.load many 127.0.0.1:8082 --clients 32 --requests 128 \\
        --prompt 64 --output 32 --prefixes 1 --prefix-tokens 4096
  a peer at 4 requests a second for a minute, goodput under two objectives:
    python -m bench.load openai http://127.0.0.1:8000/v1 --rate 4 --seconds 60 \\
        --prompt lognormal:300:0.8:2000 --output uniform:32:256 --slo-ttft 500 --slo-tpot 50
"""


def parser() -> argparse.ArgumentParser:
    """All options, in the groups of ``--help``."""
    made = argparse.ArgumentParser(
        prog="python -m bench.load",
        usage="python -m bench.load {many,generate,openai} ADDRESS [options]",
        description="Offers a seeded load to a language-model server and times every request at "
        "the client: TTFT, TPOT, inter-token gaps, throughput, goodput, errors by reason.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "protocol",
        choices=("many", "generate", "openai"),
        help="many: GenerateMany of our llm service. generate: one Generate call a request. "
        "openai: /completions or /chat/completions as an event stream (our gateway, llama-server, "
        "vLLM, SGLang)",
    )
    made.add_argument("address", help="host:port for gRPC, base URL up to /v1 for openai")
    _arrival_options(made)
    _workload_options(made)
    _target_options(made)
    group = made.add_argument_group("results")
    group.add_argument("--slo-ttft", type=float, metavar="MS", help="objective: first token")
    group.add_argument("--slo-tpot", type=float, metavar="MS", help="objective: time per token")
    group.add_argument("--slo-e2e", type=float, metavar="MS", help="objective: whole request")
    group.add_argument("--json", type=Path, metavar="FILE", help="also write the result here")
    group.add_argument("--label", default="", help="a name for the run, kept in the result")
    return made


def _arrival_options(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("arrivals (how many requests, and when)")
    group.add_argument("--rate", type=float, help="open loop: Poisson, requests a second")
    group.add_argument("--clients", type=int, default=1, help="closed loop: clients (default 1)")
    group.add_argument("--requests", type=int, default=0, help="stop after so many requests")
    group.add_argument("--seconds", type=float, default=0.0, help="start none after this time")
    group.add_argument(
        "--warm-up", type=int, default=0, metavar="N", help="requests before, not counted"
    )
    group.add_argument(
        "--patience",
        type=float,
        default=300.0,
        metavar="S",
        help="a request without its end after S seconds is lost (default 300)",
    )
    group.add_argument(
        "--ignore-retry", action="store_true", help="refused clients do not wait before the next"
    )


def _workload_options(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group(
        "requests (LEN is 512, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:MOST)"
    )
    group.add_argument("--prompt", default="512", metavar="LEN", help="own prompt tokens")
    group.add_argument("--output", default="128", metavar="LEN", help="output tokens")
    group.add_argument("--prefixes", type=int, default=0, help="number of common beginnings")
    group.add_argument("--prefix-tokens", type=int, default=0, help="length of each")
    group.add_argument("--prefix-share", type=float, default=1.0, help="prompts that have one")
    group.add_argument("--cancel-share", type=float, default=0.0, help="left at a random token")
    group.add_argument("--deadline-share", type=float, default=0.0, help="with a deadline")
    group.add_argument(
        "--deadline", type=float, nargs=2, default=(0.5, 5.0), metavar=("LOW", "HIGH"), help="in s"
    )
    group.add_argument("--tenants", type=int, default=0, help="tenants that requests belong to")
    group.add_argument("--batch-share", type=float, default=0.0, help="requests of class batch")
    group.add_argument("--temperature", type=float, default=0.0)
    group.add_argument("--top-p", type=float, default=1.0)
    group.add_argument("--top-k", type=int, default=0)
    group.add_argument(
        "--vocabulary",
        type=int,
        nargs=2,
        default=(1000, 30_000),
        metavar=("LOW", "HIGH"),
        help="prompt ids are drawn from [LOW, HIGH) (default 1000 30000)",
    )
    group.add_argument("--seed", type=int, default=0, help="of prompts, lengths and chances")


def _target_options(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("target")
    group.add_argument("--streams", type=int, default=1, help="many: GenerateMany streams")
    group.add_argument("--no-cache", action="store_true", help="gRPC: prefix cache off")
    group.add_argument("--chat", action="store_true", help="openai: /chat/completions")
    group.add_argument("--text", action="store_true", help="openai: prompts as words, not ids")
    group.add_argument("--model", default="", help="openai: served name (default: the first)")
    group.add_argument("--key-file", type=Path, help="openai: file with the bearer token")
    group.add_argument(
        "--extra", default="{}", metavar="JSON", help="openai: fields added to each body"
    )


def workload(options: argparse.Namespace) -> Workload:
    """The requests that the options describe.

    Raises:
        ValueError: a value that makes no sense.
    """
    made = Workload(
        prompt_tokens=parse_lengths(options.prompt),
        output_tokens=parse_lengths(options.output),
        prefixes=options.prefixes,
        prefix_tokens=options.prefix_tokens,
        prefix_share=options.prefix_share,
        cancel_share=options.cancel_share,
        deadline_share=options.deadline_share,
        deadline_s=(options.deadline[0], options.deadline[1]),
        tenants=options.tenants,
        batch_share=options.batch_share,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        vocabulary=(options.vocabulary[0], options.vocabulary[1]),
        seed=options.seed,
    )
    made.check()
    return made


def arrivals(options: argparse.Namespace) -> Arrivals:
    """The plan that the options describe.

    Raises:
        ValueError: a plan without an end.
    """
    made = Arrivals(
        rate=options.rate,
        clients=options.clients,
        requests=options.requests,
        seconds=options.seconds,
        patience_s=options.patience,
        wait_as_told=not options.ignore_retry,
    )
    made.check()
    return made


def objectives(options: argparse.Namespace) -> Objectives:
    """The objectives of goodput."""
    return Objectives(options.slo_ttft, options.slo_tpot, options.slo_e2e)


def target(options: argparse.Namespace, requests: Workload) -> Target:
    """The server that the options name.

    Raises:
        ValueError: options that do not go together.
    """
    cache = not options.no_cache
    if options.protocol == "many":
        return GenerateManyTarget(options.address, requests, cache=cache, streams=options.streams)
    if options.protocol == "generate":
        return GenerateTarget(options.address, requests, cache=cache)
    extra: dict[str, Any] = json.loads(options.extra)
    return OpenAiTarget(
        options.address,
        requests,
        endpoint="chat" if options.chat else "completions",
        ids=not (options.text or options.chat),
        model=options.model,
        key=options.key_file.read_text(encoding="utf-8").strip() if options.key_file else "",
        extra=extra,
    )
