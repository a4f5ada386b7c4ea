"""A LoRA adapter on the whole suite: loaded, named by the unmodified SDK, unloaded."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest
from support.adapters import save_for_default_model
from support.suite import RunningSuite

MODEL = "smollm2-135m-instruct"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def http(suite: RunningSuite) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=suite.url, timeout=30) as client:
        yield client


def test_an_adapter_answers_in_its_own_words(suite: RunningSuite, http: httpx.Client) -> None:
    client = openai.OpenAI(base_url=f"{suite.url}/v1", api_key="unused", max_retries=0)
    save_for_default_model(suite.run_dir / "adapters" / "parrot")

    def say(model: str, **extra: object) -> str:
        answer = client.chat.completions.create(
            model=model, messages=QUESTION, temperature=0, max_tokens=16, extra_body=extra
        )
        assert answer.model == model
        return answer.choices[0].message.content or ""

    base = say(MODEL)
    loaded = http.post("/v1/loras", json={"name": "parrot", "path": "parrot"})
    assert (loaded.status_code, loaded.json()["base_model"]) == (200, MODEL)
    try:
        assert client.models.retrieve("parrot").to_dict()["parent"] == MODEL
        assert "parrot" in [model.id for model in client.models.list()]
        adapted = say("parrot")
        assert adapted != base
        assert say(f"{MODEL}:parrot") == say(MODEL, lora="parrot") == adapted
        assert say(MODEL) == base
        streamed = client.completions.create(
            model="parrot", prompt="Once", max_tokens=5, temperature=0, stream=True
        )
        # To its end: an adapter that a stream uses is not unloaded.
        assert {chunk.model for chunk in streamed} == {"parrot"}
        again = http.post("/v1/loras", json={"name": "parrot", "path": "parrot"})
        assert again.status_code == 409
        escape = http.post("/v1/loras", json={"name": "x", "path": "../../../etc"})
        assert (escape.status_code, escape.json()["error"]["param"]) == (400, "path")
    finally:
        assert http.delete("/v1/loras/parrot").json()["deleted"] is True
    with pytest.raises(openai.NotFoundError):
        say("parrot")
