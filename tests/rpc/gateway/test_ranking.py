"""POST /v1/rerank and /v1/score before a service that counts common letters."""

from __future__ import annotations

import pytest
from antiphon_core.errors import InvalidArgument
from antiphon_gateway.routes.ranking import paired
from gateway_bench import GatewayBench

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUERY = {"query": "abc", "documents": ["x", "ab", {"text": "cab"}, "ba"]}


async def test_documents_come_in_order_and_ties_by_index(bench: GatewayBench) -> None:
    body = (await bench.http.post("/v1/rerank", json=QUERY)).json()
    found = [(item["index"], round(item["relevance_score"], 5)) for item in body["results"]]
    assert found == [(2, 0.3), (1, 0.2), (3, 0.2), (0, 0.0)]
    assert all("document" not in item for item in body["results"])
    assert (body["method"], body["usage"]) == ("yes_no", {"prompt_tokens": 20, "total_tokens": 20})
    assert body["id"].startswith("rerank-") and body["model"]
    cut = {**QUERY, "top_n": 2, "return_documents": True}
    results = (await bench.http.post("/v1/rerank", json=cut)).json()["results"]
    assert [item["document"]["text"] for item in results] == ["cab", "ab"]
    more = await bench.http.post("/v1/rerank", json={**QUERY, "top_n": 99})
    assert len(more.json()["results"]) == 4


async def test_one_with_many_and_many_with_many(bench: GatewayBench) -> None:
    async def scores(first: object, second: object) -> list[float]:
        request = {"text_1": first, "text_2": second}
        body = (await bench.http.post("/v1/score", json=request)).json()
        assert [item["index"] for item in body["data"]] == list(range(len(body["data"])))
        assert body["object"] == "list" and body["data"][0]["object"] == "score"
        return [round(item["score"], 5) for item in body["data"]]

    assert await scores("ab", ["a", "ab", "x"]) == [0.1, 0.2, 0.0]
    assert await scores(["a", "ab", "x"], "ab") == [0.1, 0.2, 0.0]
    assert await scores(["a", "b"], ["a", "x"]) == [0.1, 0.0]
    assert await scores("a", "a") == [0.1]


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2", "2 texts"),
        ("/v1/score", {"text_1": "a", "text_2": ["b", ""]}, "text_2[1]", "empty"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2", ""),
        ("/v1/score", {"text_1": "a", "text_2": "refuse"}, "text_2", "too long"),
        ("/v1/score", {"text_1": "a"}, "text_2", "text_2"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query", "empty"),
        ("/v1/rerank", {"query": "a", "documents": ["a", {"text": ""}]}, "documents[1]", "empty"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents", ""),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 2049}, "documents", "2048"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, "top_n", ""),
        ("/v1/rerank", {"query": "a", "documents": ["refuse"]}, "documents[0]", "too long"),
        ("/v1/rerank", {**QUERY, "rank_fields": ["text"]}, "rank_fields", ""),
        ("/v1/rerank", {**QUERY, "max_tokens_per_doc": 5}, "max_tokens_per_doc", ""),
    ],
)
async def test_refusals_name_the_field(
    bench: GatewayBench, path: str, body: dict[str, object], param: str, words: str
) -> None:
    answer = await bench.http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]


async def test_an_unknown_model_is_not_found(bench: GatewayBench) -> None:
    answer = await bench.http.post("/v1/rerank", json={**QUERY, "model": "gpt-5"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_pairs() -> None:
    assert paired(["a"], ["x", "y"]) == [("a", "x"), ("a", "y")]
    assert paired(["a", "b"], ["x"]) == [("a", "x"), ("b", "x")]
    with pytest.raises(InvalidArgument, match="3 texts and text_2 2"):
        paired(["a", "b", "c"], ["x", "y"])
