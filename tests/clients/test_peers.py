"""LiteLLM, llama-index and lm-eval, unmodified, against the real stack."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest
from antiphon.llm.v1 import generate_pb2, llm_service_pb2_grpc
from antiphon_llm.checkpoint import resolve
from antiphon_llm.front.gguf_tokenizer import build
from antiphon_nn.gguf_file import GgufFile
from support.peers import peer_packages, run_peer
from support.suite import RunningSuite

MODEL = "smollm2-135m-instruct"

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def packages() -> Path:
    return peer_packages()


def test_litellm(suite: RunningSuite, packages: Path) -> None:
    seen = run_peer(packages, "litellm_driver.py", f"{suite.url}/v1", MODEL)
    assert "Paris" in seen["text"] and seen["streamed"] == seen["text"]
    assert 0 < seen["tokens"] <= 24 and seen["finish"] in ("stop", "length")
    assert {json.loads(call)["city"] for call in seen["calls"]} <= {"Paris", "Rome"}
    assert seen["calls"]
    assert json.loads(seen["shaped"])["colour"] in ("red", "green")
    assert "Paris" in seen["completed"]
    assert seen["speech"] > 2_000
    assert len(seen["vectors"]) == 2 and len(set(seen["vectors"])) == 1
    assert len(set(seen["parallel"])) == 1
    assert seen["unknown_model"] == ["NotFoundError", "404"]
    assert seen["wrong_value"] == ["BadRequestError", "400"]


def test_llama_index(suite: RunningSuite, packages: Path) -> None:
    seen = run_peer(packages, "llama_index_driver.py", f"{suite.url}/v1", MODEL)
    assert "Paris" in seen["text"]
    assert seen["streamed"] == seen["async_streamed"] == seen["text"]
    assert "Paris" in seen["completed"] and seen["stream_completed"] == seen["completed"]
    ((name, arguments),) = seen["calls"]
    assert name == "weather" and arguments["city"] in ("Paris", "Rome")
    assert seen["shaped"] in ("red", "green")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's tokenizer as a user of lm-eval has it."""
    source = resolve(MODEL, tmp_path_factory.mktemp("cache"))
    folder = tmp_path_factory.mktemp("tokenizer")
    build(GgufFile(source.path).metadata).save(str(folder / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


async def test_lm_eval(suite: RunningSuite, packages: Path, tokenizer: Path) -> None:
    seen = run_peer(packages, "lm_eval_driver.py", f"{suite.url}/v1", MODEL, str(tokenizer))
    scores = [score for score, _ in seen["loglikelihoods"]]
    direct = [await score(suite, context, rest) for context, rest in seen["ids"]]
    assert scores == pytest.approx(direct, abs=1e-3)
    assert scores[0] > scores[1], "Paris is likelier than Berlin"
    assert seen["loglikelihoods"][0][1] is True
    (rolling,) = seen["rolling"]
    assert -80 < rolling < -10
    assert "Paris" not in seen["generated"][0]
    assert "Paris" in seen["chatted"][0]


async def score(suite: RunningSuite, context: list[int], continuation: list[int]) -> float:
    """The continuation's log-probability as the llm service itself gives it."""
    request = generate_pb2.GenerateRequest()
    request.tokens.ids.extend([*context, *continuation])
    request.output.prompt_logprobs = 0
    request.stop.max_tokens = 1
    async with grpc.aio.insecure_channel(f"127.0.0.1:{suite.port}") as channel:
        stub = llm_service_pb2_grpc.LlmServiceStub(channel)
        async for response in stub.Generate(request):
            if response.WhichOneof("event") == "accepted" and response.accepted.prompt_logprobs:
                tokens = response.accepted.prompt_logprobs
    return sum(token.logprob for token in tokens[len(context) :])
