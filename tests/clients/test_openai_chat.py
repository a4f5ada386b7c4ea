"""The unmodified openai SDK against SmolLM2 through Envoy: chat and completions."""

from __future__ import annotations

import asyncio
import math

import openai
import pytest
from support.suite import RunningSuite

MODEL = "smollm2-135m-instruct"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def client(suite: RunningSuite) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{suite.url}/v1", api_key="unused", max_retries=0)


@pytest.fixture
def async_client(suite: RunningSuite) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{suite.url}/v1", api_key="unused", max_retries=0)


def test_the_model_is_listed_and_retrieved(client: openai.OpenAI):
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).object == "model"


def test_a_greedy_answer_knows_paris(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=48
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens > 5


def test_a_stream_joins_to_the_same_answer(client: openai.OpenAI):
    parameters = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**parameters)
    chunks = list(
        client.chat.completions.create(
            **parameters, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    reasons = [
        c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason
    ]
    assert reasons == [whole.choices[0].finish_reason]
    assert sum(bool(c.choices and c.choices[0].delta.content) for c in chunks) > 2


def test_two_choices_share_a_prompt_and_differ(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, n=2, temperature=1.2, seed=5, max_tokens=24
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    texts = [choice.message.content for choice in answer.choices]
    assert texts[0] != texts[1]
    single = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=1.2, seed=5, max_tokens=24
    )
    assert single.choices[0].message.content == texts[0]


def test_a_stop_string_is_left_out(client: openai.OpenAI):
    parameters = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 48}
    full = client.chat.completions.create(**parameters).choices[0].message.content or ""
    stopped = client.chat.completions.create(**parameters, stop=["Paris"]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.content == full[: full.index("Paris")]


def test_logprobs_belong_to_the_tokens(client: openai.OpenAI):
    choice = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    ).choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    tokens = choice.logprobs.content
    joined = b"".join(bytes(token.bytes or []) for token in tokens).decode()
    assert joined.startswith(choice.message.content or "")
    for token in tokens:
        assert len(token.top_logprobs) == 3
        values = [top.logprob for top in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert token.logprob == pytest.approx(values[0])
        assert sum(map(math.exp, values)) <= 1.0 + 1e-4


async def test_a_seed_gives_the_same_tokens_alone_and_beside_seven(
    async_client: openai.AsyncOpenAI,
):
    async def seeded() -> str:
        answer = await async_client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0.9, seed=11, max_tokens=32
        )
        return answer.choices[0].message.content or ""

    async def other(number: int) -> None:
        await async_client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"Count upwards from {number}." * (number + 1)}],
            temperature=1.0,
            max_tokens=48,
        )

    alone = await seeded()
    answers = await asyncio.gather(seeded(), *(other(n) for n in range(7)))
    assert answers[0] == alone


def test_completions_echo_and_score(client: openai.OpenAI):
    answer = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0, logprobs=2
    )
    choice = answer.choices[0]
    assert choice.logprobs is not None and choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == choice.text
    several = client.completions.create(
        model=MODEL, prompt=["One two", "Red green"], max_tokens=3, temperature=0, echo=True
    )
    assert [c.index for c in several.choices] == [0, 1]
    assert several.choices[0].text.startswith("One two")


@pytest.mark.parametrize(
    ("changes", "error", "code", "param"),
    [
        ({"model": "gpt-17"}, openai.NotFoundError, "model_not_found", "model"),
        ({"messages": []}, openai.BadRequestError, None, "messages"),
        ({"temperature": 1e9}, openai.BadRequestError, "invalid_value", "temperature"),
        ({"temperature": "hot"}, openai.BadRequestError, "invalid_value", "temperature"),
        ({"max_tokens": 0}, openai.BadRequestError, "invalid_value", None),
        ({"n": 99}, openai.BadRequestError, "invalid_value", "n"),
        ({"top_logprobs": 3}, openai.BadRequestError, "invalid_value", None),
    ],
)
def test_a_bad_request_names_what_is_wrong(
    client: openai.OpenAI, changes: dict, error: type, code: str | None, param: str | None
):
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 4} | changes
    with pytest.raises(error) as refused:
        client.chat.completions.create(**body)
    if code:
        assert refused.value.code == code
    if param:
        assert refused.value.param == param
    assert len(refused.value.message) > 10


def test_a_prompt_beyond_the_context_states_limit_and_length(client: openai.OpenAI):
    long = [{"role": "user", "content": "word " * 40_000}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=long, max_tokens=4)
    assert refused.value.code == "context_length_exceeded"
    assert any(character.isdigit() for character in refused.value.message)


def test_an_empty_prompt_is_refused(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=MODEL, prompt="", max_tokens=4)
