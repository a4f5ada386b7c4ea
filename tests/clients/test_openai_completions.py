"""Scoring, log-probabilities and draw settings through the openai SDK against SmolLM2."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from support.suite import RunningSuite

MODEL = "smollm2-135m-instruct"
PROMPT = "The capital of France is"

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def client(suite: RunningSuite) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{suite.url}/v1", api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def http(suite: RunningSuite) -> httpx.Client:
    return httpx.Client(base_url=suite.url, timeout=30)


def complete(client: openai.OpenAI, **parameters: Any) -> Any:
    settings = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": 12}
    return client.completions.create(**{**settings, **parameters})


def ids_of(http: httpx.Client, text: str) -> list[int]:
    body = {"model": MODEL, "prompt": text, "add_special_tokens": False}
    return http.post("/tokenize", json=body).json()["tokens"]


def test_scoring_a_continuation_agrees_with_drawing_it(client: openai.OpenAI) -> None:
    drawn = complete(client, logprobs=1).choices[0]
    scored = complete(
        client, prompt=PROMPT + drawn.text, max_tokens=0, echo=True, logprobs=1
    ).choices[0]
    count = len(drawn.logprobs.tokens)
    assert scored.text == PROMPT + drawn.text
    assert scored.logprobs.tokens[-count:] == drawn.logprobs.tokens
    assert scored.logprobs.token_logprobs[-count:] == pytest.approx(
        drawn.logprobs.token_logprobs, abs=0.02
    )
    assert scored.logprobs.token_logprobs[0] is None
    assert len(scored.logprobs.tokens) == len(scored.logprobs.text_offset)


def test_text_offsets_hold_inside_characters_of_several_tokens(client: openai.OpenAI) -> None:
    text = "\u4e16\u754c \U0001f600 caf\u00e9!"
    choice = complete(client, prompt=text, max_tokens=0, echo=True, logprobs=0).choices[0]
    tokens, offsets = choice.logprobs.tokens, choice.logprobs.text_offset
    assert len(tokens) > 4
    assert offsets == sorted(offsets)
    assert any(token.startswith("bytes:") for token in tokens)
    for token, start in zip(tokens, offsets, strict=True):
        if not token.startswith("bytes:"):
            assert choice.text[start : start + len(token)] == token


def test_prompts_as_text_and_as_ids_score_alike(client: openai.OpenAI, http: httpx.Client) -> None:
    ids = ids_of(http, PROMPT)
    body = {"max_tokens": 0, "echo": True, "logprobs": 0}
    by_text, by_ids = (complete(client, prompt=prompt, **body) for prompt in ([PROMPT], [ids]))
    assert by_ids.choices[0].text == by_text.choices[0].text == PROMPT
    assert by_ids.choices[0].logprobs == by_text.choices[0].logprobs
    assert by_ids.usage.completion_tokens == 0


def test_prompt_logprobs_have_ranks(client: openai.OpenAI) -> None:
    answer = complete(client, extra_body={"prompt_logprobs": 3}, max_tokens=1)
    first, *rest = answer.choices[0].model_extra["prompt_logprobs"]
    assert first is None
    assert len(rest) == answer.usage.prompt_tokens - 1
    for item in rest:
        better = sum(value > item["logprob"] for value in item["top_logprobs"].values())
        assert item["rank"] == better + 1 or better == 3 < item["rank"]


def test_only_allowed_tokens_are_drawn_and_banned_ones_are_not(
    client: openai.OpenAI, http: httpx.Client
) -> None:
    (yes,), (no,) = ids_of(http, " yes"), ids_of(http, " no")
    body = {"allowed_token_ids": [yes, no]}
    text = complete(client, temperature=1.5, seed=1, extra_body=body).choices[0].text
    assert set(text.split()) <= {"yes", "no"}
    body["banned_token_ids"] = [no]
    text = complete(client, temperature=1.5, seed=1, extra_body=body).choices[0].text
    assert set(text.split()) == {"yes"}


def test_a_bias_and_a_ban_keep_a_token_out_alike(client: openai.OpenAI, http: httpx.Client) -> None:
    favourite = ids_of(http, complete(client, max_tokens=1).choices[0].text)[0]
    biased = complete(client, logit_bias={str(favourite): -100})
    banned = complete(client, extra_body={"banned_token_ids": [favourite]})
    assert biased.choices[0].text == banned.choices[0].text
    assert biased.choices[0].text != complete(client).choices[0].text


def test_stop_tokens_and_kept_stop_strings(client: openai.OpenAI, http: httpx.Client) -> None:
    full = complete(client, max_tokens=24).choices[0].text
    assert "Paris" in full
    kept = complete(client, max_tokens=24, stop="Paris", extra_body={"include_stop": True})
    assert kept.choices[0].text == full[: full.index("Paris") + len("Paris")]
    assert kept.choices[0].finish_reason == "stop"
    (paris,) = ids_of(http, " Paris")
    stopped = complete(client, max_tokens=24, extra_body={"stop_token_ids": [paris]})
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].text == full[: full.index(" Paris")]


def test_no_sequence_of_tokens_occurs_twice(client: openai.OpenAI, http: httpx.Client) -> None:
    prompt = "one two three one two three one two three one two"
    free = complete(client, prompt=prompt, max_tokens=16).choices[0].text
    assert " three one two" in free
    text = (
        complete(client, prompt=prompt, max_tokens=16, extra_body={"no_repeat_ngram_size": 3})
        .choices[0]
        .text
    )
    assert not text.startswith(" three")


def test_choices_of_a_seed_are_reproducible(client: openai.OpenAI) -> None:
    parameters = {"n": 3, "seed": 17, "temperature": 1.2, "prompt": [PROMPT, "Once upon a time"]}
    first, second = complete(client, **parameters), complete(client, **parameters)
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in second.choices]
    assert len(set(texts)) == 6
    assert first.system_fingerprint == second.system_fingerprint


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"extra_body": {"draft_depth": 64}}, "draft_depth"),
        ({"extra_body": {"allowed_token_ids": [10**7]}}, "allowed_token_ids"),
        ({"extra_body": {"allowed_token_ids": [5], "banned_token_ids": [5]}}, ""),
        ({"logit_bias": {"49999999": 1}}, "logit_bias"),
        ({"prompt": [10**7]}, "prompt"),
        ({"extra_body": {"min_tokens": 99}}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_refusals_name_the_field(client: openai.OpenAI, parameters: dict, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, **parameters)
    assert (refused.value.param or "").startswith(param)
