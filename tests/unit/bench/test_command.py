"""The command line: what it builds, refuses and writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_servers import fake_llm

from bench import overload
from bench.load import options as line
from bench.load.__main__ import measure, print_result
from bench.load.drive import Arrivals
from bench.load.lengths import Fixed, Uniform
from bench.load.targets.llm_service import GenerateManyTarget, GenerateTarget
from bench.load.targets.openai import OpenAiTarget


def parsed(*arguments: str):
    return line.parser().parse_args(arguments)


def test_options_become_the_plan_and_the_workload():
    chosen = parsed(
        *("many", "127.0.0.1:1", "--rate", "3", "--seconds", "9", "--ignore-retry"),
        *("--prompt", "uniform:3:5", "--output", "7", "--prefixes", "2", "--prefix-tokens", "64"),
        *("--cancel-share", "0.1", "--deadline-share", "0.2", "--deadline", "1", "2"),
        *("--tenants", "3", "--batch-share", "0.5", "--vocabulary", "10", "90", "--seed", "4"),
    )
    assert line.arrivals(chosen) == Arrivals(rate=3.0, seconds=9.0, wait_as_told=False)
    work = line.workload(chosen)
    assert (work.prompt_tokens, work.output_tokens) == (Uniform(3, 5), Fixed(7))
    assert (work.prefixes, work.prefix_tokens, work.cancel_share) == (2, 64, 0.1)
    assert (work.deadline_share, work.deadline_s) == (0.2, (1.0, 2.0))
    assert (work.tenants, work.batch_share, work.vocabulary, work.seed) == (3, 0.5, (10, 90), 4)


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [("many", GenerateManyTarget), ("generate", GenerateTarget), ("openai", OpenAiTarget)],
)
async def test_the_protocol_chooses_the_target(protocol, kind):
    chosen = parsed(protocol, "http://127.0.0.1:1/v1", "--requests", "1")
    assert type(line.target(chosen, line.workload(chosen))) is kind


def test_a_run_without_an_end_is_refused():
    with pytest.raises(ValueError, match="requests or seconds"):
        line.arrivals(parsed("many", "127.0.0.1:1"))


def test_help_names_every_option_group(capsys):
    with pytest.raises(SystemExit) as ended:
        line.parser().parse_args(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for word in ("arrivals", "requests (LEN", "target:", "results:", "examples:"):
        assert word in text


async def test_a_result_names_commit_machine_options_and_how_tokens_were_counted(capsys):
    async with fake_llm() as (_, address):
        chosen = parsed(
            *("many", address, "--clients", "3", "--requests", "9", "--warm-up", "2"),
            *("--prompt", "4", "--output", "6", "--slo-ttft", "60000", "--label", "a run"),
        )
        result = json.loads(json.dumps(await measure(chosen)))
    assert len(result["commit"]) == 12
    assert result["machine"]["cores"] >= 1
    assert result["options"]["clients"] == 3
    assert result["target"]["model"] == "fake"
    assert result["token_source"].startswith("events")
    assert result["requests"]["completed"] == 9
    assert result["tokens"]["output"] == 54
    assert result["goodput"]["share"] == 1.0
    assert result["client_cpu_share"] > 0.0
    print_result(result | {"client_cpu_share": 0.1})
    shown = capsys.readouterr().out
    assert "client itself" not in shown
    print_result(result | {"client_cpu_share": 0.9})
    assert "client itself" in capsys.readouterr().out
    assert "TTFT, ms" in shown
    assert "a run" in shown
    assert "9 completed" in shown


def test_clients_of_the_soak_offer_the_same_work_as_its_driver(tmp_path: Path):
    command = overload.client_command("127.0.0.1:1", 2.5, 30.0, 7, tmp_path / "r.json")
    chosen = parsed(*command[3:])
    assert line.workload(chosen) == overload.mixed_work(7)
    assert line.arrivals(chosen) == Arrivals(rate=2.5, seconds=30.0, patience_s=overload.PATIENCE_S)
    assert chosen.json == tmp_path / "r.json"


def test_refusals_are_held_to_their_promise():
    def row(count: int, with_retry: int, status: str = "RESOURCE_EXHAUSTED") -> dict:
        return {"count": count, "with_retry": with_retry, "statuses": [status], "example": ""}

    errors = {
        "QUEUE_FULL": row(5, 5),
        "KV_FULL": row(3, 1),
        "MEMORY_PRESSURE": row(2, 2, "UNAVAILABLE"),
        "DEADLINE": row(9, 0, "DEADLINE_EXCEEDED"),
        "INTERNAL": row(1, 0, "INTERNAL"),
    }
    assert overload.refused(errors) == 10
    assert overload.broken_refusals(errors) == 2 + 2
    assert overload.unexpected(errors) == ["INTERNAL"]
