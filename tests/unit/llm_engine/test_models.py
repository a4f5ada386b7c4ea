"""Logits of small random checkpoints against transformers, in every way to feed a prompt."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import antiphon_kernels
import pytest
import torch
from antiphon_llm.engine.batch import BatchBuilder, StepBatch
from antiphon_llm.engine.plan import StepPlan
from antiphon_llm.engine.request import Request, State, Timings
from antiphon_llm.engine.runner import LayerCache
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.pool import KvPool
from antiphon_llm.models.block import WantedRows
from antiphon_llm.models.config_reader import IRRELEVANT, ConfigReader, UnsupportedConfig
from antiphon_llm.models.decoder import Decoder
from antiphon_llm.models.registry import FAMILIES, build_model
from antiphon_nn.checkpoint import open_checkpoint
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.gemma3 import modeling_gemma3

PROMPT_TOKENS = 67
ENTRY_TOKENS = 16
TOLERANCE = 1e-4

SHAPE = {
    "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 256,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
YARN_ROPE = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


@dataclass
class Case:
    name: str
    config: type
    model: type
    knobs: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("llama", LlamaConfig, LlamaForCausalLM),
    Case("llama-biases", LlamaConfig, LlamaForCausalLM,
         {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    Case("llama-rope-llama3", LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3_ROPE}),
    Case("llama-rope-linear", LlamaConfig, LlamaForCausalLM,
         {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 5000.0}}),
    Case("llama-rope-yarn", LlamaConfig, LlamaForCausalLM, {"rope_parameters": YARN_ROPE}),
    Case("qwen2", Qwen2Config, Qwen2ForCausalLM),
    Case("qwen2-window", Qwen2Config, Qwen2ForCausalLM,
         {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    Case("qwen3", Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32}),
    Case("qwen3-bias-window", Qwen3Config, Qwen3ForCausalLM,
         {"attention_bias": True, "use_sliding_window": True, "sliding_window": 9,
          "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    Case("gemma3", Gemma3TextConfig, Gemma3ForCausalLM,
         {"sliding_window": 24, "num_hidden_layers": 7}),
    Case("gemma3-knobs", Gemma3TextConfig, Gemma3ForCausalLM,
         {"sliding_window": 11, "query_pre_attn_scalar": 40, "final_logit_softcapping": 3.0,
          "attention_bias": True,
          "layer_types": ["full_attention", "sliding_attention", "full_attention"],
          "rope_parameters": {
              "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
              "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0}}}),
]  # fmt: skip


@dataclass
class Built:
    ours: Decoder
    oracle: torch.nn.Module
    prompt: list[int]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    case: Case = request.param
    torch.manual_seed(5)
    config = case.config(**{**SHAPE, **case.knobs}, attn_implementation="eager")
    oracle = case.model(config).float().eval()
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "embed_tokens" not in name:
                parameter.mul_(4.0)
    path = tmp_path_factory.mktemp(case.name)
    oracle.save_pretrained(path)
    prompt = torch.randint(0, SHAPE["vocab_size"], (PROMPT_TOKENS,)).tolist()
    return Built(build_model(open_checkpoint(path)), oracle, prompt)


class Feeder:
    """Feeds token sequences through a model in given chunks, over fresh pages."""

    def __init__(self, model: Decoder, rows: int = 8) -> None:
        self._model = model
        fields = model.kv_fields(ENTRY_TOKENS)
        pool = KvPool(fields, entries=64)
        self._tables = BlockTables(
            EntryAllocator(64), rows=rows, entry_tokens=ENTRY_TOKENS, context_limit=128
        )
        self._builder = BatchBuilder(self._tables, step_tokens=512, max_rows=rows)
        self._views = [
            LayerCache(
                pool.views[f"{index}.keys"].flatten(0, 1),
                pool.views[f"{index}.values"].flatten(0, 1),
            )
            for index in range(len(model.spec.layers))
        ]

    def open(self, name: str, tokens: list[int]) -> Request:
        request = Request(name, 1, tokens, len(tokens), 1, Timings(0.0))
        request.row = self._tables.open()
        request.move(State.PREFILLING)
        return request

    def open_cached(self, name: str, donor: Request, entries: int) -> Request:
        """A request for the donor's tokens that finds its first entries in the cache."""
        request = self.open(name, donor.tokens)
        self._tables.adopt(request.row, self._tables.span(donor.row, 0, entries))
        request.written = entries * ENTRY_TOKENS
        return request

    def feed(self, parts: list[tuple[Request, int]]) -> list[torch.Tensor]:
        """Logits (n, V) of each part's tokens."""
        logits = self._feed(parts, None)
        return list(logits.split([count for _, count in parts]))

    def feed_for(self, parts: list[tuple[Request, int, int]]) -> torch.Tensor:
        """Logits (R, V) of the last tokens of each part alone, as many as it says."""
        return self._feed([(request, count) for request, count, _ in parts], [n for *_, n in parts])

    def _feed(self, parts: list[tuple[Request, int]], read: list[int] | None) -> torch.Tensor:
        plan = StepPlan()
        for request, count in parts:
            plan.add(request, count)
            self._tables.extend(request.row, request.written + count)
        with torch.inference_mode():
            batch = self._builder.build(plan)
            wanted = None if read is None else last_tokens(batch, read)
            hidden = self._model.forward(
                batch.input_ids, batch.positions, batch, self._views, wanted=wanted
            )
            out = torch.full((len(hidden), self._model.vocab_size), float("nan"))
            logits = self._model.head(hidden, out) if len(hidden) else out
        for request, count in parts:
            request.written += count
        return logits


def last_tokens(batch: StepBatch, read: list[int]) -> WantedRows:
    """The last tokens of each row as a batch of their own, so many of each."""
    rows = torch.tensor([row for row, count in enumerate(read) if count], dtype=torch.int64)
    ends = batch.query_start[1:].tolist()
    tokens = [end - n + i for end, n in zip(ends, read, strict=True) for i in range(n)]
    counts = torch.tensor([0, *(count for count in read if count)])
    return WantedRows(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        query_start=counts.cumsum(0).int(),
        context_len=batch.context_len[rows],
        block_table=batch.block_table[rows],
        block_tokens=batch.block_tokens,
        max_query=max(read),
        max_context=batch.max_context,
    )


def logits_in_chunks(model: Decoder, tokens: list[int], chunk: int) -> torch.Tensor:
    feeder = Feeder(model)
    request = feeder.open("only", tokens)
    parts = []
    while request.pending:
        parts += feeder.feed([(request, min(chunk, request.pending))])
    return torch.cat(parts)


@pytest.mark.parametrize("chunk", [16, PROMPT_TOKENS])
def test_dense_weights_of_a_narrow_type_stay_near(built: Built, tmp_path: Path, chunk: int) -> None:
    """16 rows fold norm, gate and residual into the products, more do not."""
    built.oracle.save_pretrained(tmp_path)
    dense = build_model(open_checkpoint(tmp_path), dtype=torch.bfloat16)
    assert not dense.packed
    assert {field.dtype for field in dense.kv_fields(ENTRY_TOKENS)} == {torch.bfloat16}
    expected = logits_in_chunks(built.ours, built.prompt, PROMPT_TOKENS)
    actual = logits_in_chunks(dense, built.prompt, chunk)
    error = (actual - expected).norm() / expected.norm()
    assert error < 0.06, "bf16 rounds each activation to 8 bits"


def native() -> bool:
    return antiphon_kernels.implementations()["paged_attention"].startswith("cpu")


def assert_same_row_results(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """The kernels promise equal bits; the torch references only nearly."""
    if native():
        assert torch.equal(actual, expected)
    else:
        torch.testing.assert_close(actual, expected, atol=2e-5, rtol=0)


def test_whole_prompt_equals_the_oracle(built: Built) -> None:
    with torch.inference_mode():
        expected = built.oracle(torch.tensor([built.prompt])).logits[0]
    actual = logits_in_chunks(built.ours, built.prompt, PROMPT_TOKENS)
    assert expected.std() > 0.1, "the oracle says nothing"
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("chunk", [1, 5, 16, 33])
def test_any_chunking_gives_the_same_logits(built: Built, chunk: int) -> None:
    whole = logits_in_chunks(built.ours, built.prompt, PROMPT_TOKENS)
    assert_same_row_results(logits_in_chunks(built.ours, built.prompt, chunk), whole)


def test_a_cached_prefix_gives_the_logits_of_a_cold_start(built: Built) -> None:
    feeder = Feeder(built.ours)
    cold = feeder.open("cold", built.prompt)
    expected = feeder.feed([(cold, PROMPT_TOKENS)])[0]
    for entries in (1, (PROMPT_TOKENS - 1) // ENTRY_TOKENS):
        warm = feeder.open_cached("warm", cold, entries)
        logits = feeder.feed([(warm, warm.pending)])[0]
        assert len(logits) == PROMPT_TOKENS - entries * ENTRY_TOKENS
        assert_same_row_results(logits, expected[entries * ENTRY_TOKENS :])


def test_neighbours_do_not_change_a_row(built: Built) -> None:
    alone = logits_in_chunks(built.ours, built.prompt, PROMPT_TOKENS)
    feeder = Feeder(built.ours)
    mine = feeder.open("mine", built.prompt)
    others = [feeder.open(f"other-{n}", built.prompt[n : n + 9 * n + 2]) for n in range(1, 7)]
    first = feeder.feed([(mine, 40), *((other, 2) for other in others)])[0]
    middle = feeder.feed([*((other, other.pending) for other in others[:3]), (mine, 1)])[-1]
    last = feeder.feed([(others[3], 5), (mine, mine.pending), (others[4], 1)])[1]
    assert_same_row_results(torch.cat((first, middle, last)), alone)


def test_a_step_computes_its_last_layer_for_the_wanted_tokens_alone(built: Built) -> None:
    """Unread tokens leave their keys and values, as the step after shows."""
    whole = logits_in_chunks(built.ours, built.prompt, PROMPT_TOKENS)
    feeder = Feeder(built.ours)
    first, second = feeder.open("first", built.prompt), feeder.open("second", built.prompt[:40])
    assert built.ours.prunes(PROMPT_TOKENS, 1) and not built.ours.prunes(64, 1)
    logits = feeder.feed_for([(first, 50, 1), (second, 40, 3)])
    assert_same_row_results(logits, torch.cat((whole[49:50], whole[37:40])))
    third, fourth = feeder.open("third", built.prompt), feeder.open("fourth", built.prompt)
    logits = feeder.feed_for([(third, 60, 0), (fourth, 30, 0)])
    assert logits.shape == (0, SHAPE["vocab_size"])
    rest = feeder.feed([(first, 17), (third, 7), (fourth, 37)])
    assert_same_row_results(torch.cat(rest), torch.cat((whole[50:], whole[60:], whole[30:])))


def test_attention_softcap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle's Gemma 3 has the softcap in its attention function but never passes it."""
    eager = modeling_gemma3.eager_attention_forward
    monkeypatch.setattr(
        modeling_gemma3, "eager_attention_forward", functools.partial(eager, softcap=0.5)
    )
    torch.manual_seed(6)
    config = Gemma3TextConfig(**SHAPE, attn_logit_softcapping=0.5, attn_implementation="eager")
    oracle = Gemma3ForCausalLM(config).float().eval()
    with torch.no_grad():
        for parameter in oracle.model.layers.parameters():
            parameter.mul_(4.0)
    oracle.save_pretrained(tmp_path)
    prompt = torch.randint(0, SHAPE["vocab_size"], (21,)).tolist()
    with torch.inference_mode():
        expected = oracle(torch.tensor([prompt])).logits[0]
    actual = logits_in_chunks(build_model(open_checkpoint(tmp_path)), prompt, 8)
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_config_field_of_the_oracle_is_accounted_for(case: Case) -> None:
    config = case.config(**{**SHAPE, **case.knobs}).to_dict()
    reader = _read_spec(config, case.model.__name__)
    unlisted = {key for key in config if key not in reader.asked and key not in IRRELEVANT}
    assert not unlisted


def test_both_spellings_of_rope_agree(tmp_path: Path) -> None:
    flat = {**SHAPE, "rms_norm_eps": 1e-6, "rope_parameters": LLAMA3_ROPE}
    scaling = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    older = {**SHAPE, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": scaling}
    family = "LlamaForCausalLM"
    assert _spec(flat, family).layers == _spec(older, family).layers


@pytest.mark.parametrize(
    ("architecture", "change", "named"),
    [
        ("LlamaForCausalLM", {"hidden_act": "relu"}, ["hidden_act", "relu", "silu"]),
        ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
         ["dynamic", "yarn", "llama3"]),
        ("LlamaForCausalLM", {"num_key_value_heads": 3}, ["num_key_value_heads 3"]),
        ("Qwen2ForCausalLM", {"layer_types": ["chunked_attention"] * 3},
         ["chunked_attention", "full_attention"]),
        ("Qwen3ForCausalLM", {"mlp_bias": True}, ["mlp_bias", "True"]),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True},
         ["use_bidirectional_attention", "True", "False"]),
    ],
)  # fmt: skip
def test_unsupported_values_are_refused_by_name(
    architecture: str, change: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(UnsupportedConfig) as refusal:
        _spec({**SHAPE, **change}, architecture)
    assert all(word in str(refusal.value) for word in named), str(refusal.value)


def test_two_head_geometries_are_refused() -> None:
    spec = _spec(SHAPE | {"rms_norm_eps": 1e-6}, "LlamaForCausalLM")
    wide = replace(spec.layers[0], head_dim=32)
    with pytest.raises(UnsupportedConfig, match="2 head geometries"):
        replace(spec, layers=(*spec.layers, wide))


def test_unknown_architecture_lists_the_known_ones() -> None:
    class Foreign:
        config = {"architectures": ["MambaForCausalLM"]}  # noqa: RUF012

    with pytest.raises(UnsupportedConfig, match=r"MambaForCausalLM.*Gemma3ForCausalLM"):
        build_model(Foreign())  # type: ignore[arg-type]


def test_a_bias_that_the_config_denies_is_refused(tmp_path: Path) -> None:
    oracle = LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True))
    oracle.save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        text.replace('"attention_bias": true', '"attention_bias": false')
    )
    with pytest.raises(UnsupportedConfig, match="q_proj has no bias"):
        build_model(open_checkpoint(tmp_path))


class _SpyReader(ConfigReader):
    @property
    def asked(self) -> set[str]:
        return self._read


def _read_spec(config: dict[str, Any], architecture: str) -> _SpyReader:
    reader = _SpyReader(config, architecture)
    importlib.import_module(f"antiphon_llm.models.{FAMILIES[architecture]}").decoder_spec(reader)
    return reader


def _spec(config: dict[str, Any], architecture: str) -> Any:
    module = importlib.import_module(f"antiphon_llm.models.{FAMILIES[architecture]}")
    return module.decoder_spec(ConfigReader(config, architecture))
