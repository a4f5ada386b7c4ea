"""Windows of drafts against plain decoding: the same tokens whatever is drafted or drawn again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from antiphon_llm.engine.cpu_runner import _draw_alone
from antiphon_llm.messages import Constraint, Reasoning, Sampling
from antiphon_llm.sampler.draw import Draw, DrawRow, draw_windows
from antiphon_llm.sampler.processors import TokenRefused
from antiphon_llm.sampler.row import SamplerRow
from antiphon_llm.sampler.window import Window, words_of
from antiphon_llm.speculation.guesses import Guesses
from hypothesis import given, settings
from hypothesis import strategies as st

VOCABULARY = 24
END, STOP, START = 3, 20, 21
SPEECH = (22, 23)
"""Ids of speech codes, for rows that say that they want none."""
PROMPT = [1, 2, 2, 5, 1]
LENGTH = 14

Drafter = Callable[[Sequence[int], int], list[int]]


def logits_after(tokens: Sequence[int]) -> np.ndarray:
    """fp32 (V) of a model that sees nothing but its tokens."""
    rng = np.random.default_rng(abs(hash(tuple(tokens))) % 2**32)
    return np.round(rng.normal(0, 2, VOCABULARY), 1).astype(np.float32)


class Alternating:
    """A grammar: even ids and odd ids in turns."""

    name = "grammar"
    active = True

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._taken = 0

    def fill(self, window: Window, drafts: Sequence[int]) -> None:
        for place in range(len(drafts) + 1):
            first = (self._taken + place) % 2
            window.keep(place, words_of(range(first, self._vocabulary, 2), self._vocabulary))

    def advance(self, token: int) -> None:
        if token % 2 != self._taken % 2:
            raise TokenRefused(f"id {token} out of turn", "GRAMMAR_DESYNC")
        self._taken += 1

    def rewind(self, outputs: int) -> None:
        self._taken = outputs


def new_row(fields: dict[str, Any]) -> SamplerRow:
    row = SamplerRow(
        Sampling(**fields),
        choice=1,
        prompt_ids=PROMPT,
        end_ids=[END],
        vocabulary=VOCABULARY,
        unasked_ids=SPEECH if fields.get("speech") is False else (),
    )
    if row.sampling.constraint is not None:
        row.add(Alternating(VOCABULARY))
    return row


def step(row: SamplerRow, output: Sequence[int], drafts: Sequence[int]) -> list[Draw]:
    """What one step emits behind the output, the row moved by it."""
    history = [*PROMPT, *output]
    fed = [[*history, *(max(draft, 0) for draft in drafts[:place])]
           for place in range(len(drafts) + 1)]  # fmt: skip
    logits = np.stack([logits_after(tokens) for tokens in fed])
    (drawn,) = draw_windows(logits, [DrawRow(row, len(history), tuple(drafts))])
    for draw in drawn:
        if not draw.error:
            row.advance(draw.token)
    return drawn


def generate(
    fields: dict[str, Any], drafter: Drafter, depth: int, losses: random.Random | None = None
) -> list[tuple[int, str]]:
    """(token, reason) until an end, an error or LENGTH; ``losses`` drops tokens on the way."""
    row, output = new_row(fields), []
    while len(output) < LENGTH:
        drafts = drafter([token for token, _ in output], depth)
        drawn = step(row, [token for token, _ in output], [*drafts, *[-1] * (depth - len(drafts))])
        for draw in drawn:
            output.append((draw.token, draw.reason))
            if draw.error or draw.token == END or len(output) == LENGTH:
                return output
        if losses is not None and losses.random() < 0.4:
            # Preempted: what was drawn ahead is dropped and drawn again.
            output = output[: losses.randrange(len(output) + 1)]
            row.rewind(len(output))
    return output


RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "presence_penalty": -0.5},
    {"logit_bias": {4: 2.0, END: 1.0}, "min_tokens": 5},
    {"allowed_token_ids": [3, 4, 5, 6, 7], "no_repeat_ngram_size": 3},
    {"banned_token_ids": [4, 9], "top_k": 6, "top_p": 0.9, "min_p": 0.02},
    {"no_repeat_ngram_size": 2, "no_repeat_ngram_window": 7, "temperature": 0.0},
    {"no_repeat_ngram_size": 1, "allowed_token_ids": [4, 5, 6]},
    {"reasoning": Reasoning(start_ids=[START], end_ids=[STOP, 22], open=True, budget=3,
                            transition_ids=[7, 7])},
    {"reasoning": Reasoning(start_ids=[START], end_ids=[STOP], open=False, budget=1),
     "logit_bias": {START: 4.0}, "frequency_penalty": 1.0},
    {"constraint": Constraint(kind="regex", source="([0-9][a-z])*"), "temperature": 1.5},
    {"speech": False, "temperature": 2.0, "logit_bias": {SPEECH[0]: 6.0}},
]  # fmt: skip


@pytest.mark.parametrize("fields", RULES, ids=lambda fields: "-".join(fields) or "plain")
@settings(max_examples=12, deadline=None)
@given(depth=st.sampled_from([1, 2, 4, 7]), seed=st.integers(0, 2**20))
def test_no_draft_and_no_loss_changes_a_token(
    fields: dict[str, Any], depth: int, seed: int
) -> None:
    fields = {"seed": seed, **fields}
    plain = generate(fields, lambda output, depth: [], 0)
    tokens = [token for token, _ in plain]
    chance = random.Random(seed)

    def oracle(output: Sequence[int], depth: int) -> list[int]:
        return [token for token in tokens[len(output) :][:depth] if token >= 0]

    def adversary(output: Sequence[int], depth: int) -> list[int]:
        return [(token + 1) % VOCABULARY for token in oracle(output, depth)]

    def coin(output: Sequence[int], depth: int) -> list[int]:
        return [token if chance.random() < 0.7 else chance.randrange(VOCABULARY)
                for token in oracle(output, depth)][: chance.randrange(depth + 1)]  # fmt: skip

    for drafter in (oracle, adversary, coin):
        assert generate(fields, drafter, depth) == plain
        assert generate(fields, drafter, depth, random.Random(seed)) == plain


@pytest.mark.parametrize("fields", RULES, ids=lambda fields: "-".join(fields) or "plain")
def test_a_row_alone_draws_what_it_draws_among_others(fields: dict[str, Any]) -> None:
    kinds = [fields, *RULES, {"logprobs": 1}]
    output = [token for token, _ in generate({"seed": 1, **fields}, lambda output, depth: [], 0)]
    drafts = tuple(output[:3])
    rows = [DrawRow(new_row({"seed": 1, **kind}), len(PROMPT), drafts) for kind in kinds]
    block = np.stack([logits_after([*PROMPT, *drafts[:place]]) for place in range(len(drafts) + 1)])
    together = draw_windows(np.concatenate([block] * len(rows)), rows)
    for row, drawn in zip(rows, together, strict=True):
        alone = _draw_alone(block, row)
        assert [draw.token for draw in alone] == [draw.token for draw in drawn]
        assert [draw.top for draw in alone] == [draw.top for draw in drawn]


@pytest.mark.parametrize("fields", RULES, ids=lambda fields: "-".join(fields) or "plain")
def test_a_guess_from_the_target_s_logits_is_its_draw(fields: dict[str, Any]) -> None:
    for seed in range(10):
        row, chain = new_row({"seed": seed, **fields}), []
        plain = generate({"seed": seed, **fields}, lambda output, depth: [], 0)
        for token, _ in plain[:6]:
            logits = torch.from_numpy(logits_after([*PROMPT, *chain]))[None]
            position = len(PROMPT) + len(chain)
            (guess,) = Guesses().draw(logits, [row], [position], [chain])
            assert guess == token
            chain.append(token)


@pytest.mark.parametrize("fields", RULES, ids=lambda fields: "-".join(fields) or "plain")
def test_a_row_is_untouched_only_where_no_rule_can_change_its_best(fields: dict[str, Any]) -> None:
    row = new_row({"seed": 2, **fields})
    assert row.untouched == (fields == {"temperature": 0.0})
    if row.untouched:
        for token, _ in generate(fields, lambda output, depth: [], 0):
            row.advance(token)
            raw = logits_after([token])
            (drawn,) = draw_windows(raw[None], [DrawRow(row, 9)])
            assert drawn[0].token == raw.argmax()


def test_an_oracle_s_drafts_are_all_accepted() -> None:
    fields = {"seed": 5, "min_tokens": LENGTH}
    tokens = [token for token, _ in generate(fields, lambda output, depth: [], 0)]
    drawn = step(new_row(fields), [], tokens[:7])
    assert [draw.token for draw in drawn] == tokens[:8]


def test_a_draft_that_a_rule_bars_is_refused() -> None:
    drawn = step(new_row({"seed": 5, "banned_token_ids": [9]}), [], [9, 9])
    assert len(drawn) == 1 and drawn[0].token != 9


def test_nothing_left_ends_the_window_with_its_reason() -> None:
    fields = {"allowed_token_ids": [6, 7], "no_repeat_ngram_size": 1}
    output = generate(fields, lambda output, depth: [], 0)
    assert [reason for _, reason in output] == ["", "", "NO_VALID_TOKEN"]


def test_log_probabilities_are_those_of_the_raw_logits_of_each_position() -> None:
    fields = {"seed": 3, "logprobs": 2, "temperature": 0.5, "min_tokens": LENGTH}
    tokens = [token for token, _ in generate(fields, lambda output, depth: [], 0)]
    drawn = step(new_row(fields), [], tokens[:4])
    assert len(drawn) == 5
    for place, draw in enumerate(drawn):
        raw = logits_after([*PROMPT, *tokens[:place]]).astype(np.float64)
        logprob = raw - np.log(np.exp(raw).sum())
        assert draw.top is not None
        assert draw.logprob == pytest.approx(logprob[draw.token], abs=1e-5)
        assert draw.top.rank == 1 + (raw > raw[draw.token]).sum()
        order = np.lexsort((np.arange(VOCABULARY), -raw))[:2]
        assert draw.top.token_ids == order.tolist()
