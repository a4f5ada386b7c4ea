"""Drafts and masks on the device runner: the text is that of plain steps on the CPU runner."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from antiphon_llm.engine.cuda.runner import RunnerOptions
from antiphon_llm.messages import Sampling, StepOutputs, Submit
from antiphon_llm.models.decoder import Decoder
from antiphon_llm.models.registry import build_model
from antiphon_llm.sampler.processors import TokenRefused
from antiphon_llm.sampler.window import Window
from antiphon_llm.speculation.drafter import Drafter
from antiphon_llm.speculation.ngram import NgramDrafter
from antiphon_nn.checkpoint import open_checkpoint
from transformers import Qwen3Config, Qwen3ForCausalLM

from .drafters import Adversary, Coin, Oracle
from .test_cuda_runner import ROWS, SHAPE, VOCABULARY, Serving, options

DEPTH = 4
Make = Callable[[dict[str, list[int]]], Drafter]
DRAFTERS: dict[str, Make] = {
    "oracle": lambda answers: Oracle(answers, VOCABULARY),
    "adversary": lambda answers: Adversary(answers, VOCABULARY),
    "coin": lambda answers: Coin(answers, VOCABULARY),
    "ngram": lambda answers: NgramDrafter(),
}
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.4},
    {"temperature": 0.0, "frequency_penalty": 0.9, "logit_bias": {3: 2.0}},
    {"temperature": 0.9, "logit_bias": {3: 4.0, 9: -6.0}, "min_tokens": 9},
    {"temperature": 1.0, "logprobs": 3, "frequency_penalty": 0.5},
    {"temperature": 0.9, "allowed_token_ids": [4, 9, 30, 31, 77, VOCABULARY - 1]},
    {"temperature": 0.0, "banned_token_ids": list(range(0, 150, 2)), "presence_penalty": 0.8},
    {"temperature": 0.0, "no_repeat_ngram_size": 3, "logprobs": 2},
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    torch.manual_seed(11)
    oracle = Qwen3ForCausalLM(Qwen3Config(**SHAPE))
    with torch.no_grad():
        for parameter in oracle.model.layers.parameters():
            parameter.mul_(4.0)
    path: Path = tmp_path_factory.mktemp("qwen3")
    oracle.save_pretrained(path)
    return build_model(open_checkpoint(path), fixed_tokens=ROWS * (1 + DEPTH))


def submissions(rng: np.random.Generator) -> list[Submit]:
    """Repetitive prompts with every kind of sampling, plain and constrained rows mixed."""
    messages = []
    for index in range(2 * len(KINDS)):
        piece = rng.integers(0, VOCABULARY - 1, int(rng.integers(2, 7))).tolist()
        prompt = piece * int(rng.integers(1, 5))
        kind = KINDS[index % len(KINDS)]
        bound = max(int(rng.integers(1, 26)), kind.get("min_tokens", 0))
        messages.append(Submit(f"r{index}", prompt, Sampling(max_tokens=bound, seed=index, **kind)))
    return messages


class Plain:
    """What the CPU runner makes of the submissions, without drafts."""

    def __init__(self, model: Decoder, endpoint: object) -> None:
        self.messages = submissions(np.random.default_rng(5))
        serving = Serving(model, endpoint, None)
        serving.run(self.messages)
        self.tokens, self.finished = serving.tokens(), serving.finished()
        self.logprobs = logprobs_of(serving.sent)


def logprobs_of(sent: Sequence[object]) -> dict[str, list[tuple[float, list[int], int]]]:
    found: dict[str, list[tuple[float, list[int], int]]] = {}
    for message in sent:
        if not isinstance(message, StepOutputs) or not message.top_logprobs:
            continue
        for name, logprob, top in zip(
            message.request_ids, message.logprobs, message.top_logprobs, strict=True
        ):
            if top is not None:
                found.setdefault(name, []).append((logprob, top.token_ids, top.rank))
    return found


@pytest.fixture(scope="module")
def plain(model: Decoder, endpoint_type: type) -> Plain:
    return Plain(model, endpoint_type())


@pytest.fixture(scope="module")
def endpoint_type() -> type:
    from .conftest import RecordingEndpoint

    return RecordingEndpoint


def with_drafts(**changes: object) -> RunnerOptions:
    return options(**{"draft_depth": DEPTH, "step_tokens": 40, "overlap_depth": 1, **changes})


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafts_change_no_text(
    model: Decoder, plain: Plain, endpoint_type: type, drafter: str, overlap: int, graphs: bool
) -> None:
    serving = Serving(
        model,
        endpoint_type(),
        with_drafts(overlap_depth=overlap, graphs=graphs),
        DRAFTERS[drafter](plain.tokens),
        step_tokens=40,
    )
    serving.run(plain.messages)
    assert serving.tokens() == plain.tokens
    assert serving.finished() == plain.finished
    for name, expected in plain.logprobs.items():
        for one, other in zip(logprobs_of(serving.sent)[name], expected, strict=True):
            assert one[1:] == other[1:]
            assert math.isclose(one[0], other[0], abs_tol=1e-5)
    assert serving.speculation is not None
    telemetry = serving.speculation.telemetry
    assert telemetry.proposed > (0 if drafter == "ngram" else 20)
    if drafter == "adversary":
        assert telemetry.accepted == 0
    elif drafter == "oracle":
        assert telemetry.accepted > 0.9 * telemetry.proposed
    elif drafter == "coin":
        assert 0 < telemetry.accepted < telemetry.proposed
    counters = serving.runner.counters
    assert counters["draw: masked rows"] > 20
    if graphs:
        assert counters["graph: replay"] > 0
        assert set(serving.runner.graphs.eager) <= {"near the context limit"}


def test_masks_alone_equal_the_cpu_runner(
    model: Decoder, plain: Plain, endpoint_type: type
) -> None:
    for overlap in (0, 1):
        serving = Serving(model, endpoint_type(), options(overlap_depth=overlap))
        serving.run(plain.messages)
        assert serving.tokens() == plain.tokens
        assert serving.finished() == plain.finished


class Faulty:
    """A processor that fails in one place."""

    name = "grammar"
    active = True

    def __init__(self, at: str, after: int) -> None:
        self.at, self.left = at, after

    def fill(self, window: Window, drafts: Sequence[int]) -> None:
        if self.at == "fill" and self.left <= 0:
            raise ValueError("no state")

    def advance(self, token: int) -> None:
        self.left -= 1
        if self.at == "advance" and self.left < 0:
            raise TokenRefused(f"{token} is not in the grammar", "GRAMMAR_DESYNC")

    def rewind(self, outputs: int) -> None: ...


@pytest.mark.parametrize("depth", [0, DEPTH])
@pytest.mark.parametrize("at", ["fill", "advance"])
def test_a_processor_that_fails_ends_its_own_request(
    model: Decoder, plain: Plain, endpoint_type: type, at: str, depth: int
) -> None:
    drafter = Oracle(plain.tokens, VOCABULARY) if depth else None
    serving = Serving(model, endpoint_type(), with_drafts(draft_depth=depth), drafter)
    messages = [message for message in plain.messages if len(plain.tokens[message.request_id]) > 6]
    serving.endpoint.inbox += messages
    serving.loop.take_messages()
    victim = messages[0].request_id
    request = serving.loop.live.get(victim)
    assert request is not None and request.sampler is not None
    request.sampler.add(Faulty(at, 4))
    serving.run([])
    reason, error = serving.finished()[victim]
    assert reason == "error"
    assert error == ("the mask failed: ValueError: no state" if at == "fill" else error)
    if at == "advance":
        assert error.endswith("is not in the grammar")
    assert serving.tokens()[victim] == plain.tokens[victim][:4]
    for message in messages[1:]:
        assert serving.tokens()[message.request_id] == plain.tokens[message.request_id]


def test_a_mask_without_any_id_is_reported(model: Decoder, endpoint_type: type) -> None:
    serving = Serving(model, endpoint_type(), options(overlap_depth=1))
    nothing = {"banned_token_ids": list(range(VOCABULARY))}
    serving.run(
        [
            Submit("barred", [1, 2, 3], Sampling(max_tokens=4, seed=1, **nothing)),
            Submit("plain", [1, 2, 3], Sampling(max_tokens=4, seed=1)),
        ]
    )
    reason, error = serving.finished()["barred"]
    assert reason == "error" and "every token was ruled out" in error
    assert serving.finished()["plain"] == ("length", "")
