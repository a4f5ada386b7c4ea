"""Greedy answers to 200 prompts with each drafter against those without one, token by token.

The n-gram drafter runs on a default model; the drafters with weights of their own on a small
random target, whose draft model and heads are random too and hardly ever right; ``itself`` is
the target drafting for itself, which is always right.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from antiphon_llm.checkpoint import resolve
from antiphon_llm.messages import Sampling, Submit

from bench.divergence import english
from bench.llm_cpu import Silent
from tests.unit.llm_engine import drafting

PROMPTS = 200
DEPTH = 4
OUTPUT = 24


@dataclass(frozen=True)
class Compared:
    """One drafter over all prompts."""

    drafter: str
    different: int
    """Prompts whose answer differs."""
    accepted: int
    rejected: int
    steps: int
    plain_steps: int


def compare_all() -> list[Compared]:
    """Each drafter over its 200 prompts."""
    with tempfile.TemporaryDirectory() as folder:
        paths = _checkpoints(Path(folder))
        messages = drafting.submits(
            PROMPTS, sampled=0.0, seed=17, max_tokens=OUTPUT, ignore_eos=True
        )
        target = paths["target"]
        return [
            _ngram(),
            _compare("model", target, messages, drafter="model", draft_model_path=paths["model"]),
            _compare("itself", target, messages, drafter="model", draft_model_path=target),
            _compare("mtp", target, messages, drafter="mtp"),
            _compare(
                "eagle3", target, messages, drafter="eagle3", draft_model_path=paths["eagle3"]
            ),
        ]


def _ngram() -> Compared:
    path = resolve("smollm2-135m-instruct", Path("~/.cache/antiphon").expanduser()).path
    ids = english(path)
    greedy = Sampling(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    messages = [
        Submit(f"{number}", ids[3 * number :][: 16 + number % 48], greedy)
        for number in range(PROMPTS)
    ]
    fields: dict[str, Any] = {
        "kv_entries": 0, "entry_tokens": 16, "context_limit": 256, "threads": 0,
        "step_tokens": 512, "prefill_chunk": 256, "max_rows": 8,
    }  # fmt: skip
    return _compare("ngram", path, messages, drafter="ngram", **fields)


def _compare(
    name: str,
    path: Path,
    messages: Sequence[Submit],
    *,
    drafter: str,
    draft_model_path: Path | str = "",
    **fields: Any,
) -> Compared:
    fields |= {"queue_limit": PROMPTS}
    plain = drafting.served(path, Silent(), **fields).run(messages)
    own = {"drafter": drafter, "draft_depth": DEPTH, "draft_model_path": str(draft_model_path)}
    drafted = drafting.served(path, Silent(), **own, **fields).run(messages)
    different = sum(
        plain.tokens[message.request_id] != drafted.tokens[message.request_id]
        for message in messages
    )
    return Compared(name, different, drafted.accepted, drafted.rejected, drafted.steps, plain.steps)


def _checkpoints(root: Path) -> dict[str, Path]:
    """A target with an MTP head inside, and draft checkpoints for it."""
    model: Any = drafting.target(root / "target", layers=4)
    embedding, head = model.model.embed_tokens.weight.detach(), model.lm_head.weight.detach()
    mtp = drafting.MtpReference(embedding, head, norms=True)
    drafting.scale(mtp, 5)
    drafting.add_tensors(root / "target", drafting.qwen_names(mtp))
    eagle = drafting.Eagle3Reference(embedding, torch.arange(drafting.VOCABULARY))
    drafting.scale(eagle, 6)
    drafting.save_eagle3(root / "eagle3", eagle)
    drafting.target(root / "model", layers=2, family="llama", seed=8)
    return {name: root / name for name in ("target", "eagle3", "model")}
