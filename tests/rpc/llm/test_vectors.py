"""Embed and Score over a socket: the scripted engine, and the real one over small checkpoints."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from antiphon.llm.v1 import generate_pb2, llm_service_pb2
from antiphon_core.errors import InvalidArgument
from antiphon_core.rpc.streams import result
from antiphon_llm.__main__ import engine_worker
from llm_bench import LlmBench
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from tokenizers.decoders import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORDS = ["no", "yes", "red", "blue", "sky", "what", "is", "the", "colour", "of", "grass", "green"]
END, VOCABULARY = 0, 64
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "eos_token_id": END, "pad_token_id": END,
}  # fmt: skip


def tokenizer() -> Tokenizer:
    """One token a word, and an end token behind a text and between the texts of a pair."""
    words = {"<end>": END, "<unk>": 1} | {f"\u0120{word}": n + 2 for n, word in enumerate(WORDS)}
    words |= {"yes": 40, "no": 41}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = ByteLevel()
    made.add_special_tokens(["<end>"])
    made.post_processor = processors.TemplateProcessing(
        single="$A <end>", pair="$A <end> $B <end>", special_tokens=[("<end>", END)]
    )
    return made


def ids(text: str) -> list[int]:
    return tokenizer().encode(text).ids


async def served(path: Path, model: torch.nn.Module, **settings: object) -> LlmBench:
    model.save_pretrained(path)
    tokenizer().save(str(path / "tokenizer.json"))
    bench = LlmBench(path, None, engine_worker, model=str(path), threads=1, max_rows=4, **settings)
    await bench.start()
    return bench


@pytest.fixture(scope="module")
def decoder() -> LlamaForCausalLM:
    torch.manual_seed(2)
    return LlamaForCausalLM(LlamaConfig(**SHAPE)).float().eval()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small(
    tmp_path_factory: pytest.TempPathFactory, decoder: LlamaForCausalLM
) -> AsyncIterator[LlmBench]:
    bench = await served(tmp_path_factory.mktemp("small"), decoder)
    yield bench
    await bench.stop()


def unit(decoder: LlamaForCausalLM, prompt: list[int]) -> torch.Tensor:
    with torch.no_grad():
        state = decoder.model(torch.tensor([prompt])).last_hidden_state[0, -1]
    return state / state.norm()


def texts(*items: str, **fields: object) -> llm_service_pb2.EmbedRequest:
    inputs = [llm_service_pb2.EmbedInput(text=item) for item in items]
    return llm_service_pb2.EmbedRequest(inputs=inputs, **fields)


def pairs(*items: tuple[str, str]) -> llm_service_pb2.ScoreRequest:
    return llm_service_pb2.ScoreRequest(
        pairs=[llm_service_pb2.ScorePair(query=query, document=text) for query, text in items]
    )


async def test_vectors_are_of_the_end_token_and_shorten(
    small: LlmBench, decoder: LlamaForCausalLM
) -> None:
    answer = await result(small.stub.Embed(texts("red sky", "the colour of grass is green")))
    assert answer.prompt_tokens == 3 + 7
    for vector, text in zip(
        answer.vectors, ("red sky", "the colour of grass is green"), strict=True
    ):
        wanted = unit(decoder, ids(text))
        assert torch.tensor(list(vector.values)).sub(wanted).abs().max() <= 1e-4
    given = llm_service_pb2.EmbedInput(tokens=generate_pb2.TokenInput(ids=[4, 6]))
    exact = await result(small.stub.Embed(llm_service_pb2.EmbedRequest(inputs=[given])))
    assert exact.prompt_tokens == 2, "token ids are taken as they are"
    short = (await result(small.stub.Embed(texts("red sky", dimensions=8)))).vectors[0].values
    whole = answer.vectors[0].values[:8]
    length = math.sqrt(sum(value * value for value in whole))
    assert list(short) == pytest.approx([value / length for value in whole], abs=1e-6)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (texts("red", dimensions=33), "dimensions"),
        (texts("red", dimensions=-1), "dimensions"),
        (texts("red", ""), "inputs[1]"),
        (texts(), "inputs"),
        (texts(*["red"] * 2049), "inputs"),
        (texts("red", "red " * 128), "inputs[1]"),
    ],
    ids=["wide", "negative", "empty", "none", "many", "long"],
)
async def test_wrong_inputs_name_their_field(small: LlmBench, request_, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await result(small.stub.Embed(request_))
    assert caught.value.field == field


async def test_a_model_without_labels_compares_embeddings(
    small: LlmBench, decoder: LlamaForCausalLM
) -> None:
    asked = [("what is red", "the sky"), ("what is red", "grass"), ("grass", "grass")]
    answer = await result(small.stub.Score(pairs(*asked)))
    wanted = [float(unit(decoder, ids(a)) @ unit(decoder, ids(b))) for a, b in asked]
    assert list(answer.scores) == pytest.approx(wanted, abs=1e-4)
    assert (answer.method, answer.prompt_tokens) == ("embedding", 4 + 3 + 2)
    with pytest.raises(InvalidArgument) as caught:
        await result(small.stub.Score(pairs(("red", "sky"), ("red", ""))))
    assert caught.value.field == "pairs[1].document"


async def test_a_classifier_scores_the_joined_pair_and_draws_nothing(tmp_path: Path) -> None:
    torch.manual_seed(4)
    config = LlamaConfig(**SHAPE, num_labels=1)
    model = LlamaForSequenceClassification(config).float().eval()
    bench = await served(tmp_path, model)
    try:
        answer = await result(bench.stub.Score(pairs(("what is red", "the sky"))))
        joined = tokenizer().encode("what is red", "the sky").ids
        with torch.no_grad():
            hidden = model.model(torch.tensor([joined])).last_hidden_state[0, -1]
            wanted = float(torch.sigmoid(model.score(hidden)))
        assert list(answer.scores) == pytest.approx([wanted], abs=1e-4)
        assert (answer.method, answer.prompt_tokens) == ("classifier", len(joined))
        with pytest.raises(InvalidArgument, match="no output head"):
            await bench.generate(generate_pb2.GenerateRequest(text="red"))
    finally:
        await bench.stop()


async def test_yes_against_no_behind_a_template(tmp_path: Path, decoder: LlamaForCausalLM) -> None:
    template = tmp_path / "score.jinja"
    template.write_text("what is {{ query }} {{ document }} is")
    bench = await served(
        tmp_path / "m", decoder, score_template=str(template), score_tokens=[" no", " yes"]
    )
    try:
        answer = await result(bench.stub.Score(pairs(("red", "sky"), ("red", "<end>"))))
        prompt = tokenizer().encode("what is red sky is", add_special_tokens=False).ids
        with torch.no_grad():
            logits = decoder(torch.tensor([prompt])).logits[0, -1]
        no, yes = (logits[2 + WORDS.index(word)] for word in ("no", "yes"))
        assert answer.scores[0] == pytest.approx(float(torch.sigmoid(yes - no)), abs=1e-4)
        assert answer.method == "yes_no"
        assert answer.prompt_tokens > len(prompt)
    finally:
        await bench.stop()
