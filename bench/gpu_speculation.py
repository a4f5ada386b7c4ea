"""Speculation, sampling and masks on a CUDA device: Qwen3-8B's shape, in process, one model build.

The weights are random, but what attention and feed-forward add to the residual stream is scaled
by 2^-40, below the stream's own rounding: every weight is read and multiplied as in any model of
the shape, and the next token depends on the last one alone, whatever order the products sum in.
So the model copies text that it is given, and long greedy texts
without a repeated token exist. Measured are

- a step of 1 + 4 tokens against a plain one, the device alone and as served (an adversary's
  drafts, of which none is accepted);
- n-gram drafting where the output's spans of 8 to 24 tokens stand in the prompt in another order,
  with the acceptance found, against the same requests without drafts; and drafts that are right
  with a stated chance;
- n-gram drafting on text that repeats nothing;
- what top-k and top-p, and masks, add to a step, and a masked draw against a plain one.

Arms are run in the order ABBA. Texts with drafts are compared with those without.

    python -m bench.gpu_speculation [--bars] [--json F]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from antiphon_kernels.sample import Mask, Workspace, mask_words, sample
from antiphon_kernels.sample.cases import PLAIN, USUAL, peaked_logits, settings_of
from antiphon_llm.engine.speculating import Speculation
from antiphon_llm.messages import Sampling, Submit
from antiphon_llm.speculation.drafter import Drafter
from antiphon_llm.speculation.ngram import NgramDrafter
from antiphon_nn.layers import DenseLinear

from bench import gpu_command, gpu_engine
from bench.gpu_engine import SAMPLINGS, Bench
from bench.scripted_drafter import Scripted

DEPTH = 4
SILENT = 2.0**-40
SPANS = (8, 24)
STARTS = 8
CHANCES = (0.6, 0.8, 1.0)
ROWS = (1, 64)
BANNED = 64
"""Ids that the masked rows may not draw."""


class SpeculationBench:
    """The engine's bench with a model that copies, and drafters put in and taken out."""

    def __init__(self, options: argparse.Namespace) -> None:
        arguments = ["--model", "8b", "--rows", *map(str, options.rows), "--device", options.device]
        arguments += ["--dtype", options.dtype, "--draft-depth", str(DEPTH)]
        arguments += ["--step-tokens", str(options.step_tokens)]
        self.bench = Bench("8b", gpu_engine.parse(arguments))
        for position, part in enumerate(self.bench.model.projections[:-1]):
            # qkv, output, gate and up, down: the second and fourth add to the stream.
            if position % 2 and isinstance(part, DenseLinear):
                part.weight.mul_(SILENT)
        self.vocabulary = self.bench.shape.vocabulary
        self._random = random.Random(1)
        self._serial = 0

    def drafting(self, drafter: Drafter | None) -> Speculation | None:
        """Has the loop draft with this from now on, or not at all."""
        loop = self.bench.loop
        loop.speculation = Speculation(drafter, depth=DEPTH) if drafter else None
        loop.live.ended = loop.speculation.release if loop.speculation else lambda request: None
        return loop.speculation

    def text(self, prompt: list[int], new: int, **sampling: Any) -> tuple[list[int], float]:
        """One request's tokens, and tokens a second from its first to its last."""
        self._serial += 1
        settings = Sampling(
            **{"temperature": 0.0, "max_tokens": new, "ignore_eos": True} | sampling
        )
        self.bench.run([Submit(f"s{self._serial}", prompt, settings, cache=False)])
        steps = [(at, message.token_ids) for at, message in self.bench.endpoint.outputs]
        steps = [(at, ids) for at, ids in steps if ids]
        tokens = [token for _, ids in steps for token in ids]
        rest = len(tokens) - len(steps[0][1])
        return tokens, rest / (steps[-1][0] - steps[0][0])

    def filler(self, count: int) -> list[int]:
        """Random tokens."""
        return [self._random.randrange(self.vocabulary) for _ in range(count)]

    def unrepeated(self) -> list[int]:
        """The longest greedy text without a repeated token that was found: a token and what the
        model says behind it."""
        texts = []
        for _ in range(STARTS):
            start = self.filler(1)
            tokens, _ = self.text(start, gpu_engine.NEW_TOKENS)
            texts.append(_without_repeat(start + tokens))
        return max(texts, key=len)

    def reordered(self, text: Sequence[int]) -> list[int]:
        """A prompt in which the text's spans stand in another order, and then its first token."""
        spans, at = [], 1
        while at < len(text):
            end = at + self._random.randint(*SPANS)
            spans.append(text[at:end])
            at = end
        self._random.shuffle(spans)
        document = [token for span in spans for token in span]
        filler = self.filler(max(0, gpu_engine.PROMPT - len(document) - 1))
        return [*filler, *document, text[0]]

    def tpot(self, rows: int, sampling: dict[str, Any]) -> float:
        """ms: the median time between steps that drew for all rows."""
        self.bench.serve(rows, gpu_engine.PROMPT, gpu_engine.NEW_TOKENS, sampling)
        outputs = self.bench.endpoint.outputs
        full = [at for at, message in outputs if len(message.token_ids) == rows]
        return statistics.median((b - a) * 1e3 for a, b in pairwise(full))


def _without_repeat(text: Sequence[int]) -> list[int]:
    seen: set[int] = set()
    for place, token in enumerate(text):
        if token in seen:
            return list(text[:place])
        seen.add(token)
    return list(text)


def abba(first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float]:
    """The means of two arms, each run twice."""
    a, b, c, d = first(), second(), second(), first()
    return (a + d) / 2, (b + c) / 2


def verify(bench: SpeculationBench, text: Sequence[int]) -> dict[str, float]:
    """Steps of 1 + 4 tokens at one row, none of them accepted, against plain ones."""
    prompt = [*bench.filler(gpu_engine.PROMPT - 1), text[0]]
    new = len(text) - 1
    devices: dict[int, list[float]] = {1: [], 1 + DEPTH: []}

    def arm(width: int, drafter: Drafter | None) -> float:
        bench.drafting(drafter)
        _, rate = bench.text(prompt, new)
        bench.drafting(None)
        devices[width].append(bench.bench.replay(1, width) or math.nan)
        return 1e3 / rate

    plain, served = abba(
        lambda: arm(1, None),
        lambda: arm(1 + DEPTH, Scripted(text[1:], 0.0, bench.vocabulary)),
    )
    device = {width: statistics.mean(times) for width, times in devices.items()}
    return {
        "plain_ms": device[1],
        "verify_ms": device[1 + DEPTH],
        "ratio": device[1 + DEPTH] / device[1],
        "plain_served_ms": plain,
        "verify_served_ms": served,
        "served_ratio": served / plain,
    }


def copying(bench: SpeculationBench, text: Sequence[int]) -> dict[str, Any]:
    """Tokens a second with n-gram drafts over those without, on spans in another order."""
    prompt, new = bench.reordered(text), len(text) - 1
    found: dict[str, Any] = {"span_tokens": SPANS, "tokens": new}
    texts: dict[str, list[int]] = {}

    def arm(name: str, drafter: Drafter | None) -> float:
        speculation = bench.drafting(drafter)
        texts[name], rate = bench.text(prompt, new)
        if speculation is not None:
            telemetry = speculation.telemetry
            found["proposed"], found["accepted"] = telemetry.proposed, telemetry.accepted
        bench.drafting(None)
        return rate

    plain, drafted = abba(lambda: arm("plain", None), lambda: arm("ngram", NgramDrafter()))
    found |= {
        "plain_tokens_per_s": plain,
        "ngram_tokens_per_s": drafted,
        "speed_up": drafted / plain,
        "acceptance": found["accepted"] / max(1, found["proposed"]),
        "different_tokens": _different(texts["plain"], texts["ngram"]),
    }
    for chance in CHANCES:
        scripted = Scripted(texts["plain"], chance, bench.vocabulary)
        found[f"speed_up_at_{chance}"] = arm(f"{chance}", scripted) / plain
        found["different_tokens"] += _different(texts["plain"], texts[f"{chance}"])
    return found


def _different(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


def idle(bench: SpeculationBench, text: Sequence[int]) -> dict[str, float]:
    """Tokens a second with n-gram drafting on that finds nothing, over those without it."""
    prompt, new = [*bench.filler(gpu_engine.PROMPT - 1), text[0]], len(text) - 1
    proposed = 0

    def arm(drafter: Drafter | None) -> float:
        nonlocal proposed
        speculation = bench.drafting(drafter)
        _, rate = bench.text(prompt, new)
        proposed += speculation.telemetry.proposed if speculation else 0
        bench.drafting(None)
        return rate

    plain, drafting = abba(lambda: arm(None), lambda: arm(NgramDrafter()))
    return {"plain": plain, "drafting": drafting, "ratio": drafting / plain, "proposed": proposed}


def sampling_costs(bench: SpeculationBench, rows: int) -> dict[str, float]:
    """ms of a step: greedy, with top-k and top-p, and with a mask for every row."""
    banned = {"banned_token_ids": list(range(BANNED))}
    greedy, filtered = abba(
        lambda: bench.tpot(rows, SAMPLINGS["greedy"]),
        lambda: bench.tpot(rows, SAMPLINGS["filtered"]),
    )
    masked = bench.tpot(rows, SAMPLINGS["filtered"] | banned)
    return {"greedy": greedy, "filtered": filtered, "filtered_masked": masked}


def draws(bench: SpeculationBench, rows: int) -> dict[str, float]:
    """us of one draw of these rows: plain and filtered, without and with bits; all rows masked,
    half of the ids allowed, and one id in a thousand."""
    device = bench.bench.device
    logits = peaked_logits(min(rows, 8), bench.vocabulary, device.device)
    logits = logits.repeat(-(-rows // len(logits)), 1)[:rows].contiguous()
    out, faults = torch.zeros((2, -(-rows // 4) * 4), dtype=torch.int32, device=device.device)
    workspace = Workspace.allocate(rows, bench.vocabulary, device.device)
    kinds = {"plain": settings_of((PLAIN,) * rows, device.device)}
    kinds["filtered"] = settings_of((USUAL,) * rows, device.device)
    masks = {"": None, "_half": _mask(bench, rows, 0.5), "_sparse": _mask(bench, rows, 0.001)}
    found = {}
    for kind, settings in kinds.items():
        for name, mask in masks.items():

            def several(settings: Any = settings, mask: Mask | None = mask) -> None:
                for _ in range(20):
                    sample(logits, settings, out[:rows], faults[:rows], workspace, mask)

            graph = device.record(several)
            found[kind + name] = bench.bench.replay_ms(graph.replay, 5) / 20 * 1e3
    return found


def _mask(bench: SpeculationBench, rows: int, share: float) -> Mask:
    on = bench.bench.device.device
    words = mask_words(bench.vocabulary)
    generator = torch.Generator().manual_seed(3)
    allowed = torch.rand(8, words, 32, generator=generator) < share
    allowed[:, 0, 0] = True
    bits = (allowed.long() << torch.arange(32)).sum(-1).to(torch.int32)
    return Mask(
        torch.arange(rows, dtype=torch.int32, device=on),
        bits.repeat(-(-rows // 8), 1)[:rows].to(on),
        torch.full((rows,), -1, dtype=torch.int32, device=on),
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs everything and prints it as it comes."""
    started = time.perf_counter()
    bench = SpeculationBench(options)
    refused = bench.bench.runner.graphs_refused
    print(f"ready in {time.perf_counter() - started:.1f} s; graphs refused: {refused}", flush=True)
    text = bench.unrepeated()
    raw: dict[str, Any] = {"text_tokens": len(text)}
    for name, figures in (
        ("verify", lambda: verify(bench, text)),
        ("copying", lambda: copying(bench, text)),
        ("idle", lambda: idle(bench, text)),
        *((f"step_{rows}", lambda rows=rows: sampling_costs(bench, rows)) for rows in options.rows),
        *((f"draw_{rows}", lambda rows=rows: draws(bench, rows)) for rows in options.rows),
    ):
        raw[name] = figures()
        print(f"{name}: {raw[name]}", flush=True)
    raw["counters"] = bench.bench.runner.counters
    raw["seconds"] = time.perf_counter() - started
    print(f"{raw['counters']}\ntotal {raw['seconds']:.1f} s", flush=True)
    bench.bench.close()
    return raw


def judge(raw: dict[str, Any]) -> int:
    """Prints the bars of what was measured; the exit status to use."""
    from bench.report import Report

    report = Report("sampling_gpu")
    report.add("verify_step_ratio", round(raw["verify"]["ratio"], 3), raw["verify"])
    report.add("ngram_copy_speed_up", round(raw["copying"]["speed_up"], 2), raw["copying"])
    report.add("drafts_different_tokens", raw["copying"]["different_tokens"], raw["copying"])
    report.add("drafting_idle_ratio", round(raw["idle"]["ratio"], 3), raw["idle"])
    one, many = raw["step_1"], raw["step_64"]
    report.add("filters_add_1", round(one["filtered"] - one["greedy"], 3), one)
    report.add("filters_add_64", round(100 * (many["filtered"] / many["greedy"] - 1), 2), many)
    for rows in ROWS:
        cost, drawn = raw[f"step_{rows}"], raw[f"draw_{rows}"]
        tail = (drawn["filtered"] + drawn["filtered_half"]) / 1e3 / cost["greedy"]
        report.add(f"tail_share_{rows}", round(100 * tail, 2), {"step": cost, "draw": drawn})
    wide = raw["draw_64"]
    report.add("masked_draw_ratio", round(wide["plain_half"] / wide["plain"], 3), wide)
    return report.finish()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--bars", action="store_true", help="judge against bars.toml")
    parser.add_argument("--json", type=Path, help="write the raw figures here")
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS), help=argparse.SUPPRESS)
    parser.add_argument("--step-tokens", type=int, default=8192, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="bfloat16", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(gpu_command.run(parse(sys.argv[1:]), measure, judge))
