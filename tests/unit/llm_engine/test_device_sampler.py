"""The device sampler against the host's draw: same tokens, same scores, any slate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from antiphon_llm.engine.cuda.device import open_device
from antiphon_llm.engine.cuda.masks import MaskUploads
from antiphon_llm.messages import Constraint, Reasoning, Sampling
from antiphon_llm.sampler.device import DeviceSampler
from antiphon_llm.sampler.device_settings import SettingsMirror
from antiphon_llm.sampler.draw import Draw, DrawRow, draw, draw_windows
from antiphon_llm.sampler.row import SamplerRow
from hypothesis import given, settings
from hypothesis import strategies as st

from .test_windows import Alternating

END = 3
VOCABULARY = 211
SPEECH = range(150, 170)
"""Ids of speech codes, for rows that want none."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(eq=False)
class Live:
    """A request with a table row, as a plan names it."""

    sampler: SamplerRow | None
    row: int
    tokens: list[int] = field(default_factory=lambda: [1, 2, 2, 9])
    prompt_length: int = 4

    @property
    def request(self) -> Live:
        return self

    drafts: tuple[int, ...] = ()

    @property
    def first_draw(self) -> int:
        return len(self.tokens)


@dataclass
class Ahead:
    """A planned row whose last token the host has not read."""

    request: Live
    first_draw: int
    drafts: tuple[int, ...] = ()


def live(slot: int, prompt: tuple[int, ...] = (1, 2, 2, 9), **fields: Any) -> Live:
    sampler = SamplerRow(
        Sampling(**fields),
        choice=slot % 2,
        prompt_ids=list(prompt),
        end_ids=[END],
        vocabulary=VOCABULARY,
        unasked_ids=SPEECH if fields.get("speech") is False else (),
    )
    if sampler.sampling.constraint is not None and sampler.sampling.reasoning is None:
        sampler.add(Alternating(VOCABULARY))
    return Live(sampler, slot, list(prompt), len(prompt))


def device_sampler(rows: int = 16, slots: int = 16) -> DeviceSampler:
    return DeviceSampler(places=rows, slots=slots, vocabulary=VOCABULARY, device=DEVICE)


def random_logits(seed: int, rows: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2.5, (rows, VOCABULARY)).astype(np.float32)


def step(
    sampler: DeviceSampler, mirror: SettingsMirror, rows: list[Any], logits: np.ndarray
) -> list[Draw]:
    """Draws one token of each row, see ``windows``."""
    return [drawn for (drawn,) in windows(sampler, mirror, rows, [1] * len(rows), logits)]


def windows(
    sampler: DeviceSampler,
    mirror: SettingsMirror,
    rows: list[Any],
    widths: list[int],
    logits: np.ndarray,
) -> list[list[Draw]]:
    """One step of the runner: fill, publish, draw, mask, finish, read back."""
    block = torch.from_numpy(logits).to(DEVICE)
    unfinished = sampler.fill(mirror, rows, widths)
    sampler.publish(mirror, unfinished)
    sampler.draw(block)
    scored = None
    if unfinished is not None:
        ids = [
            (row.request.tokens[-1], *(max(draft, 0) for draft in row.drafts), *[0] * width)[:width]
            for row, width in zip(rows, widths, strict=True)
        ]
        fed = torch.tensor([token for row in ids for token in row], dtype=torch.int32)
        masked = [
            (masked, rows[masked.index].request.sampler.window(rows[masked.index].drafts))
            for masked in unfinished.masked
        ]
        uploads = MaskUploads(
            open_device(DEVICE), places=len(logits), vocabulary=VOCABULARY, slots=1
        )
        masks = uploads.send(0, [(row, window) for row, window in masked if not window.free])
        scored = sampler.finish(block, unfinished, fed=fed.to(DEVICE), masks=masks)
    return sampler.draws(
        sampler.outcome[:, : len(logits)].cpu().numpy(),
        rows,
        widths,
        unfinished,
        None if scored is None else scored.cpu().numpy(),
    )


def host_step(rows: list[Live], logits: np.ndarray) -> list[Draw]:
    samplers = [row.sampler for row in rows if row.sampler is not None]
    return draw(logits, samplers, [row.first_draw for row in rows])


def assert_same(actual: list[Draw], expected: list[Draw]) -> None:
    for mine, other in zip(actual, expected, strict=True):
        assert (mine.token, mine.error) == (other.token, other.error)
        assert (mine.top is None) == (other.top is None)
        if mine.top is not None and other.top is not None:
            assert math.isclose(mine.logprob, other.logprob, abs_tol=1e-5)
            assert mine.top.token_ids == other.top.token_ids
            np.testing.assert_allclose(mine.top.logprobs, other.top.logprobs, atol=1e-5)


def failed(rows: list[Live], drawn: list[Draw]) -> list[Live]:
    """Rows that the engine would end."""
    return [row for row, token in zip(rows, drawn, strict=True) if token.error]


def commit(rows: list[Live], drawn: list[Draw]) -> None:
    for row, token in zip(rows, drawn, strict=True):
        if token.error:
            continue
        row.tokens.append(token.token)
        assert row.sampler is not None
        row.sampler.advance(token.token)


THINKS = Reasoning(start_ids=[], end_ids=[12, 13], open=True, budget=2, transition_ids=[7])
"""Forces three ids behind the second token."""

knobs = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.7]),
        "top_k": st.sampled_from([0, 0, 1, 3, 50, 300]),
        "top_p": st.sampled_from([1.0, 1.0, 0.0, 0.5, 0.95]),
        "min_p": st.sampled_from([0.0, 0.0, 0.1, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.3, 0.7]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.7, -0.4]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 0.5]),
        "logit_bias": st.sampled_from([{}, {}, {5: 4.0, END: 2.5}, {0: -100.0}]),
        "min_tokens": st.sampled_from([0, 0, 2]),
        "allowed_token_ids": st.sampled_from([[], [], [3, 7, 8, 90, 200], [44]]),
        "banned_token_ids": st.sampled_from([[], [], [5, 44, 210]]),
        "no_repeat_ngram_size": st.sampled_from([0, 0, 2]),
        "no_repeat_ngram_window": st.sampled_from([0, 3]),
        "speech": st.sampled_from([True, True, False]),
        "constraint": st.sampled_from([None, None, Constraint(kind="regex", source="(eo)*")]),
        "reasoning": st.sampled_from([None, None, THINKS]),
        "logprobs": st.sampled_from([-1, -1, 0, 4, 20]),
        "seed": st.integers(-(2**63), 2**63 - 1),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(knobs, min_size=1, max_size=7), st.integers(0, 1000), st.randoms())
def test_tokens_and_scores_are_the_host_s_in_any_slate(
    fields: list[dict[str, Any]], seed: int, random: Any
) -> None:
    sampler, requests = device_sampler(), [live(slot, **f) for slot, f in enumerate(fields)]
    mirrors = [sampler.mirror(), sampler.mirror()]
    for number in range(4):
        rows = random.sample(requests, random.randint(1, len(requests)))
        logits = random_logits(seed + number, len(rows))
        expected = host_step(rows, logits)
        before = logits.copy()
        assert_same(step(sampler, mirrors[number % 2], rows, logits), expected)
        assert np.array_equal(before, logits)
        requests = [row for row in requests if row not in failed(rows, expected)]
        if not requests:
            return
        commit(rows, expected)


@settings(max_examples=40, deadline=None)
@given(st.lists(knobs, min_size=1, max_size=5), st.integers(0, 1000), st.randoms())
def test_windows_draw_what_the_host_draws_position_by_position(
    fields: list[dict[str, Any]], seed: int, random: Any
) -> None:
    """Right drafts, wrong ones and none; rows wider on the device than their drafts."""
    sampler, requests = device_sampler(40), [live(slot, **f) for slot, f in enumerate(fields)]
    mirror = sampler.mirror()
    for number in range(4):
        depth = random.choice([0, 2, 2, 4])
        width = 1 + depth + (random.choice([0, 2]) if depth else 0)
        rows = random.sample(requests, random.randint(1, len(requests)))
        logits = random_logits(seed + number, width * len(rows))
        places = [slice(width * index, width * index + 1 + depth) for index in range(len(rows))]
        for row, place in zip(rows, places, strict=True):
            row.drafts = proposal(row, logits[place], depth, random)
        expected = [
            drawn
            for row, place in zip(rows, places, strict=True)
            for drawn in draw_windows(
                logits[place], [DrawRow(row.sampler, row.first_draw, row.drafts)]
            )
        ]
        actual = windows(sampler, mirror, rows, [width] * len(rows), logits)
        for row, mine, theirs in zip(rows, actual, expected, strict=True):
            assert_same(mine, theirs)
            if theirs[-1].error:
                requests.remove(row)  # The engine ends it.
            else:
                commit([row] * len(theirs), theirs)
        if not requests:
            return


def proposal(row: Live, logits: np.ndarray, depth: int, random: Any) -> tuple[int, ...]:
    """Drafts of which the first few are right; padding behind them."""
    drafts: list[int] = []
    right = random.randint(0, depth)
    while len(drafts) < right:
        assert row.sampler is not None
        window = DrawRow(row.sampler, row.first_draw, (*drafts, -1))
        (drawn,) = draw_windows(logits[: len(drafts) + 2], [window])
        if drawn[-1].error:
            break
        drafts.append(drawn[-1].token)
    if len(drafts) < depth and random.random() < 0.5:
        drafts.append(random.randrange(VOCABULARY))
    return (*drafts, *[-1] * (depth - len(drafts)))


def test_a_plain_slate_leaves_nothing_unfinished() -> None:
    sampler = device_sampler()
    rows = [live(0, temperature=0.0), live(1, top_p=0.9, top_k=40), live(2, min_p=0.1)]
    assert sampler.fill(sampler.mirror(), rows, [1, 1, 1]) is None


def test_min_tokens_stop_mattering_once_they_are_reached() -> None:
    sampler, row = device_sampler(), live(0, min_tokens=1)
    mirror = sampler.mirror()
    first = sampler.fill(mirror, [row], [1])
    assert first is not None and first.masked and not first.adjusted
    row.tokens.append(7)
    assert row.sampler is not None
    row.sampler.advance(7)
    assert sampler.fill(mirror, [row], [1]) is None


def test_a_history_follows_tokens_that_the_host_has_not_read() -> None:
    ahead, synchronous = live(2, frequency_penalty=1.5), live(2, frequency_penalty=1.5)
    sampler, mirror = device_sampler(), device_sampler().mirror()
    tokens = []
    for number in range(6):
        logits = random_logits(number, 1)
        # The host's tokens stay at the prompt: the device alone counts what it drew.
        drawn = step(sampler, mirror, [Ahead(ahead, ahead.first_draw + number)], logits)
        expected = host_step([synchronous], logits)
        commit([synchronous], expected)
        tokens.append((drawn[0].token, expected[0].token))
    assert all(mine == other for mine, other in tokens)


def test_a_history_is_rebuilt_after_a_dropped_token_and_for_a_new_owner() -> None:
    sampler = device_sampler()
    mirror = sampler.mirror()
    first = live(5, presence_penalty=2.0, repetition_penalty=1.4)
    commit([first], step(sampler, mirror, [first], random_logits(0, 1)))
    # A token that is drawn and then dropped with the row: drawn again, it counts once.
    step(sampler, mirror, [first], random_logits(1, 1))
    for number in range(1, 4):
        logits = random_logits(number, 1)
        expected = host_step([first], logits)
        assert_same(step(sampler, mirror, [first], logits), expected)
        commit([first], expected)
    second = live(5, prompt=(8, 8, 30), presence_penalty=-2.0, frequency_penalty=0.3)
    for number in range(3):
        logits = random_logits(number, 1)
        expected = host_step([second], logits)
        assert_same(step(sampler, mirror, [second], logits), expected)
        commit([second], expected)


def test_a_history_that_the_host_cannot_know_is_refused() -> None:
    sampler, row = device_sampler(), live(0, presence_penalty=1.0)
    with pytest.raises(RuntimeError, match="slot 0 is needed at position 6"):
        sampler.fill(sampler.mirror(), [Ahead(row, 6)], [1])


def test_faults_are_reported_row_by_row_in_the_host_s_words() -> None:
    logits = random_logits(0, 5)
    logits[0, 200] = np.nan
    logits[1] = -np.inf
    logits[2, 0] = np.inf
    rows = [live(0), live(1, temperature=0.0), live(2, logprobs=2), live(3, logprobs=2), live(4)]
    actual = step(device_sampler(), device_sampler().mirror(), rows, logits)
    assert_same(actual, host_step(rows, logits))
    assert [bool(drawn.error) for drawn in actual] == [True, True, True, False, False]


def test_equal_logits_are_reported_by_ascending_id() -> None:
    logits = np.zeros((1, VOCABULARY), np.float32)
    logits[0, [40, 7, 90]] = 2.0
    logits[0, 11] = -0.0
    drawn = step(device_sampler(), device_sampler().mirror(), [live(0, logprobs=6)], logits)
    assert drawn[0].top is not None and drawn[0].top.token_ids == [7, 40, 90, 0, 1, 2]


def test_settings_of_a_place_change_only_with_its_request() -> None:
    sampler = device_sampler()
    mirror = sampler.mirror()
    rows = [live(0, temperature=0.5), live(1, temperature=0.7, top_k=9)]
    sampler.fill(mirror, rows, [1, 1])
    sampler.fill(mirror, rows[::-1], [1, 1])
    assert mirror.settings.temperature[:2].tolist() == pytest.approx([0.7, 0.5])
    assert mirror.settings.top_k[:2].tolist() == [9, 0]
    assert mirror.settings.position[:2].tolist() == [4, 4]
    key = live(0, temperature=0.5).sampler
    assert key is not None
    assert mirror.settings.key[1].item() & (2**64 - 1) == key.noise_key(0).key


def test_predicted_bytes_are_those_allocated() -> None:
    from antiphon_kernels.sample import Workspace

    workspace = Workspace.allocate(6, 5000, "cpu")
    tensors = [
        value
        for name in workspace.__slots__
        if isinstance(value := getattr(workspace, name), torch.Tensor)
    ]
    assert Workspace.predict_bytes(6, 5000) == sum(tensor.nbytes for tensor in tensors)
    assert DeviceSampler.predict_bytes(6, 3, 5000) == (
        Workspace.predict_bytes(6, 5000) + 75_000 + 6 * 16 + 8 * 8
    )
