"""Structured output on this machine: are constrained outputs valid, and what do masks cost?

*valid*: random schemas over three models (a default one, and two random ones of 49k and 257
tokens), each with and without drafting, 32 requests in flight. An output counts as cut where it
reached its token limit. *masks*: microseconds to fill a row's mask and to accept a token, along
texts of three schemas, and milliseconds to compile them. *overhead*: decode rate of constrained
rows over that of the same rows without, in turns.

    python -m bench.structured [valid] [masks] [overhead] [--schemas 500] [--rows 32]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from antiphon_core.logs import configure_logging
from antiphon_llm.checkpoint import resolve
from antiphon_llm.engine.boot import BootPhases, boot
from antiphon_llm.front.model import load_text_model
from antiphon_llm.front.schema_gate import gate_schema
from antiphon_llm.messages import Constraint, EngineConfig, Finish, Sampling, Submit
from antiphon_llm.sampler.window import mask_words
from antiphon_llm.structured.xgrammar_backend import XgrammarBackend
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from bench.llm_cpu import Silent
from bench.random_schemas import fault, longest_blank, random_schemas

MODEL = "smollm2-135m-instruct"
LARGE_MODEL = "gemma-3-270m"
BLANKS = 4
OUTPUT = 160
SMALL = [bytes([index]) for index in range(256)] + [b""]
"""Every byte, then the end token: the vocabulary of the smallest model, whose head is wider."""
SMALL_HEAD = 272

TEXTS = {
    "record": (
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 40},
                "population": {"type": "integer", "minimum": 0},
                "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 5},
                "note": {"type": "string"},
            },
            "required": ["city", "population", "tags", "note"],
            "additionalProperties": False,
        },
        '{"city": "Paris", "population": 2102650, "tags": ["red"], "note": "A city of light."}',
    ),
    "open names": (
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        '{"city": "Paris", "mayor": "Anne", "rivers": ["Seine", {"length": 775}]}',
    ),
    "recursive": (
        {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#"}},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
        '{"name": "root", "children": [{"name": "a", "children": [{"name": "leaf one"}]}]}',
    ),
}


@dataclass
class Served:
    """One model's outputs with or without drafting."""

    model: str
    drafting: bool
    requests: int
    valid: int = 0
    cut: int = 0
    invalid: int = 0
    failed: int = 0
    longest_blank: int = 0
    tokens: int = 0
    seconds: float = 0.0
    accepted_drafts: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass
class MaskCost:
    """One schema along one text."""

    vocabulary: int
    schema: str
    compile_ms: float
    tokens: int
    fill_us: float
    """Median."""
    fill_worst_us: float
    accept_us: float


@dataclass(frozen=True)
class Model:
    """A checkpoint with the bytes of its tokens."""

    name: str
    path: Path
    vocabulary: list[bytes]
    end_id: int


def default_model(name: str = MODEL) -> Model:
    """One of the models that come as packages."""
    source = resolve(name, Path("~/.cache/antiphon").expanduser())
    text = load_text_model(source, "")
    end = text.tokenizer.token_id(text.tokenizer.special.eos or "")
    assert end is not None
    return Model(name, source.path, text.vocabulary(), end)


def random_models(folder: Path, default: Model) -> list[Model]:
    """Two small ones of other families, drawn at random."""
    torch.manual_seed(3)
    shape = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 1024, "initializer_range": 0.2,
    }  # fmt: skip
    large = {**shape, "vocab_size": len(default.vocabulary), "eos_token_id": default.end_id}
    small = {**shape, "vocab_size": SMALL_HEAD, "eos_token_id": len(SMALL) - 1}
    Qwen3ForCausalLM(Qwen3Config(**large)).save_pretrained(folder / "qwen3")
    LlamaForCausalLM(LlamaConfig(**small)).save_pretrained(folder / "llama")
    return [
        Model("random qwen3", folder / "qwen3", default.vocabulary, default.end_id),
        Model("random llama", folder / "llama", SMALL, len(SMALL) - 1),
    ]


class Engine:
    """A real engine in this process that keeps a number of requests in flight."""

    def __init__(self, model: Model, rows: int, **fields: Any) -> None:
        config = EngineConfig(
            model_path=str(model.path), context_limit=512, max_rows=rows, queue_limit=4096,
            threads=len(os.sched_getaffinity(0)), grammar_whitespace=BLANKS,
            grammar_timeout_s=120.0, prefix_cache=False, **fields,
        )  # fmt: skip
        endpoint = Silent()
        self.loop = boot(config, endpoint, BootPhases(endpoint), model.vocabulary)
        self.rows = rows

    def serve(self, submits: Sequence[Submit]) -> dict[str, tuple[list[int], Finish]]:
        """Every request's tokens and end."""
        waiting = list(reversed(submits))
        tokens: dict[str, list[int]] = {submit.request_id: [] for submit in submits}
        ends: dict[str, Finish] = {}
        while len(ends) < len(submits):
            while waiting and len(tokens) - len(waiting) - len(ends) < self.rows:
                self.loop.intake.submit(waiting.pop())
            self.loop.intake.advance()
            if self.loop.busy:
                self.loop.step()
            outputs = self.loop.outbox.flush()
            if outputs is None:
                continue
            for name, token in zip(outputs.request_ids, outputs.token_ids, strict=True):
                tokens[name].append(token)
            ends |= {finish.request_id: finish for finish in outputs.finished}
        return {name: (tokens[name], ends[name]) for name in tokens}


def valid(model: Model, *, count: int, rows: int) -> Iterator[Served]:
    """The same schemas without and with drafting, on one engine."""
    schemas = random_schemas(seed=29, count=count)
    prompt = [1 + index % 7 for index in range(24)]
    engine = Engine(model, rows, drafter="ngram", draft_depth=4, draft_valve="off")
    for depth in (0, 4):
        submits = [
            Submit(
                f"{number}",
                [*prompt, 1 + number % 60],
                Sampling(
                    temperature=1.0 if number % 4 else 0.0,
                    seed=number,
                    max_tokens=OUTPUT,
                    draft_depth=depth,
                    constraint=Constraint(kind="json_schema", source=gated.text),
                ),
            )
            for number, (_, gated) in enumerate(schemas)
        ]
        started = time.perf_counter()
        outputs = engine.serve(submits)
        outcome = Served(model.name, depth > 0, count, seconds=time.perf_counter() - started)
        for number, (schema, _) in enumerate(schemas):
            _judge(outcome, model, schema, *outputs[f"{number}"])
        yield outcome


def _judge(outcome: Served, model: Model, schema: dict, tokens: list[int], end: Finish) -> None:
    text = b"".join(model.vocabulary[token] for token in tokens).decode("utf-8", "replace")
    outcome.tokens += len(tokens)
    outcome.accepted_drafts += end.accepted_drafts
    outcome.longest_blank = max(outcome.longest_blank, longest_blank(text))
    if end.reason == "length":
        outcome.cut += 1
    elif end.reason != "stop":
        outcome.failed += 1
        outcome.faults.append(f"{end.reason}: {end.error}")
    elif found := fault(schema, text):
        outcome.invalid += 1
        outcome.faults.append(f"{found}: {json.dumps(schema)} {text}")
    else:
        outcome.valid += 1


def masks(model: Model) -> Iterator[MaskCost]:
    """Costs along a text of each schema."""
    width = len(model.vocabulary)
    backend = XgrammarBackend(model.vocabulary, width=width, end_ids=[model.end_id], whitespace=16)
    words = np.empty(mask_words(width), dtype=np.uint32)
    ids = {token: index for index, token in enumerate(model.vocabulary)}
    longest = max(map(len, ids))
    for name, (schema, text) in TEXTS.items():
        source = gate_schema(schema, strict=True).text
        started = time.perf_counter()
        grammar = backend.compile(Constraint(kind="json_schema", source=source))
        compile_ms = (time.perf_counter() - started) * 1e3
        matcher = grammar.matcher([model.end_id])
        fills, accepts = [], []
        for token in _longest_pieces(text.encode(), ids, longest):
            begin = time.perf_counter()
            matcher.fill(words)
            filled = time.perf_counter()
            assert matcher.accept(token)
            accepts.append(time.perf_counter() - filled)
            fills.append(filled - begin)
        yield MaskCost(
            width, name, round(compile_ms, 1), len(fills),
            round(statistics.median(fills) * 1e6, 1), round(max(fills) * 1e6, 1),
            round(statistics.median(accepts) * 1e6, 2),
        )  # fmt: skip


def _longest_pieces(text: bytes, ids: dict[bytes, int], longest: int) -> Iterator[int]:
    while text:
        size = next(n for n in range(min(longest, len(text)), 0, -1) if text[:n] in ids)
        yield ids[text[:size]]
        text = text[size:]


def overhead(model: Model, rows: int, repeats: int = 4) -> float:
    """Decode rate of rows under a grammar that takes almost anything over that of free rows."""
    engine = Engine(model, rows)
    anything = Constraint(kind="regex", source=r"[^\x00]*")
    rates: list[float] = []
    for _ in range(repeats + 1):
        seconds = {}
        for constraint in (None, anything):
            sampling = Sampling(temperature=0.0, max_tokens=64, constraint=constraint)
            submits = [Submit(f"{row}", [1 + row, 2, 3], sampling) for row in range(rows)]
            started = time.perf_counter()
            drawn = sum(len(tokens) for tokens, _ in engine.serve(submits).values())
            seconds[constraint] = (time.perf_counter() - started) / drawn
        rates.append(seconds[None] / seconds[anything])
    return statistics.median(rates[1:])


def main() -> None:
    """Prints one JSON line for each measurement."""
    options = argparse.ArgumentParser(description="Structured output on this machine.")
    options.add_argument("parts", nargs="*", default=["valid", "masks", "overhead"])
    options.add_argument("--schemas", type=int, default=500)
    options.add_argument("--rows", type=int, default=32)
    given = options.parse_args()
    configure_logging("bench", level="error")
    default = default_model()
    if "valid" in given.parts:
        with tempfile.TemporaryDirectory() as folder:
            for model in (*random_models(Path(folder), default), default):
                for outcome in valid(model, count=given.schemas, rows=given.rows):
                    print(json.dumps(asdict(outcome)), flush=True)
    if "masks" in given.parts:
        for model in (default, default_model(LARGE_MODEL)):
            for cost in masks(model):
                print(json.dumps(asdict(cost)), flush=True)
    if "overhead" in given.parts:
        for rows in (1, 8):
            ratio = round(overhead(default, rows), 3)
            print(json.dumps({"rows": rows, "constrained_rate_ratio": ratio}), flush=True)


if __name__ == "__main__":
    main()
