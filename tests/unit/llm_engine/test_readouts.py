"""Vectors and scores of small random checkpoints against transformers, through the whole engine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from antiphon_llm.engine.boot import BootPhases, boot
from antiphon_llm.engine.loop import EngineLoop
from antiphon_llm.messages import (
    Embedding,
    EmbedSubmit,
    EngineConfig,
    Hello,
    Sampling,
    StepOutputs,
    Submit,
)
from antiphon_nn.errors import CheckpointError
from safetensors.torch import save_file
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
)

SHAPE = {
    "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "eos_token_id": 159,
    "max_position_embeddings": 256, "pad_token_id": 0,
}  # fmt: skip
FAMILIES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, {"sliding_window": 11}),
}
LENGTHS = (1, 7, 130, 16, 33, 2, 90, 64)
TOLERANCE = 1e-4


def random_model(config: type, model: type, **knobs: Any) -> PreTrainedModel:
    torch.manual_seed(3)
    oracle = model(config(**{**SHAPE, **knobs}, attn_implementation="eager")).float().eval()
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "embed_tokens" not in name:
                parameter.mul_(4.0)
    return oracle


def prompts(lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    generator = torch.Generator().manual_seed(9)
    return [torch.randint(0, 158, (length,), generator=generator).tolist() for length in lengths]


def states(oracle: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """fp32 (N, H) behind the last norm."""
    decoder = getattr(oracle, "model", oracle)
    with torch.no_grad():
        return decoder(torch.tensor([ids])).last_hidden_state[0]


def unit(vector: torch.Tensor) -> np.ndarray:
    return (vector / vector.norm()).numpy()


class Served:
    """An engine over a checkpoint directory, in this thread."""

    def __init__(self, path: Path, endpoint: Any, *, score_ids: Sequence[int] = (), **options: Any):
        settings = {"threads": 1, "max_rows": 4, "step_tokens": 64, "prefill_chunk": 48,
                    "kv_entries": 80, **options}  # fmt: skip
        self.endpoint = endpoint
        config = EngineConfig(model_path=str(path), **settings)
        self.loop: EngineLoop = boot(config, endpoint, BootPhases(endpoint), (), score_ids)
        self.hello = next(item for item in endpoint.drain_sent() if isinstance(item, Hello))

    def run(self, messages: Sequence[object]) -> list[object]:
        self.endpoint.inbox.extend(messages)
        self.loop.take_messages()
        while self.loop.busy:
            self.loop.step()
            outputs = self.loop.outbox.flush()
            if outputs is not None:
                self.endpoint.send(outputs)
        sent = self.endpoint.drain_sent()
        self.loop.scheduler.check_integrity()
        return sent

    def read(self, ids: Sequence[list[int]], **options: Any) -> list[Embedding]:
        """The answers for some prompts that are sent together, in their order."""
        asked = [EmbedSubmit(f"e{place}", item, **options) for place, item in enumerate(ids)]
        answers = {item.request_id: item for item in self.run(asked) if isinstance(item, Embedding)}
        return [answers[message.request_id] for message in asked]

    def vectors(self, ids: Sequence[list[int]], **options: Any) -> np.ndarray:
        answers = self.read(ids, **options)
        assert not any(answer.error for answer in answers)
        return np.array([answer.vector for answer in answers])


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path, endpoint_type: type) -> Serve:
    def serve(model: PreTrainedModel, prepare: Callable[[Path], None] = lambda path: None,
              **options: Any) -> Served:  # fmt: skip
        model.save_pretrained(tmp_path)
        prepare(tmp_path)
        return Served(tmp_path, endpoint_type(), **options)

    return serve


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_equal_transformers_alone_and_in_company(family: str, serve: Serve) -> None:
    config, model, knobs = FAMILIES[family]
    oracle = random_model(config, model, **knobs)
    served = serve(oracle)
    assert (served.hello.embedding_size, served.hello.pooling) == (64, "last")
    assert served.hello.generates and not served.hello.labels
    ids = prompts()
    together = served.vectors(ids)
    wanted = np.array([unit(states(oracle, item)[-1]) for item in ids])
    assert np.abs(together - wanted).max() <= TOLERANCE
    assert np.linalg.norm(together, axis=1) == pytest.approx(np.ones(len(ids)), abs=1e-6)
    alone = np.concatenate([served.vectors([item]) for item in ids])
    assert np.array_equal(alone, together)


@pytest.mark.parametrize("device_overlap", [0, 1])
def test_answers_stream_on_while_vectors_are_computed(serve: Serve, device_overlap: int) -> None:
    oracle = random_model(LlamaConfig, LlamaForCausalLM)
    served = serve(oracle, overlap_depth=device_overlap)
    chat = Submit("chat", [5, 6, 7], Sampling(temperature=0.0, max_tokens=40, ignore_eos=True))
    reads = [EmbedSubmit(str(place), item) for place, item in enumerate(prompts((120,) * 12))]
    sent = served.run([chat, *reads])
    tokens = [item.request_ids.count("chat") for item in sent if isinstance(item, StepOutputs)]
    assert sum(tokens) == 40
    answered = [place for place, item in enumerate(sent) if isinstance(item, Embedding)]
    between = [item for item in sent[answered[0] : answered[-1]] if isinstance(item, StepOutputs)]
    assert len(between) > 10, "no token came while the vectors were computed"
    assert len(answered) == 12


def pooled_by(mode: str, **more: Any) -> Callable[[Path], None]:
    """Writes the files of a sentence-transformers checkpoint."""

    def prepare(path: Path) -> None:
        stages = [("", "Transformer"), ("1_Pooling", "Pooling"), *more.get("stages", ())]
        modules = [
            {"idx": place, "name": str(place), "path": folder,
             "type": f"sentence_transformers.models.{kind}"}
            for place, (folder, kind) in enumerate(stages)
        ]  # fmt: skip
        (path / "modules.json").write_text(json.dumps(modules))
        (path / "1_Pooling").mkdir()
        flags = {f"pooling_mode_{name}": name == mode
                 for name in ("cls_token", "mean_tokens", "lasttoken", "max_tokens")}  # fmt: skip
        (path / "1_Pooling/config.json").write_text(json.dumps(flags))

    return prepare


@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "lasttoken"])
@pytest.mark.parametrize("saved", ["whole", "bare"])
def test_a_checkpoints_own_pooling(serve: Serve, mode: str, saved: str) -> None:
    oracle = random_model(Qwen3Config, Qwen3ForCausalLM)
    served = serve(oracle if saved == "whole" else oracle.model, pooled_by(mode))
    assert served.hello.generates is (saved == "whole")
    ids = prompts((5, 100, 17))

    def wanted(item: list[int]) -> np.ndarray:
        found = states(oracle, item)
        return unit({"mean_tokens": found.mean(0), "cls_token": found[0]}.get(mode, found[-1]))

    vectors = served.vectors(ids)
    assert np.abs(vectors - np.array([wanted(item) for item in ids])).max() <= TOLERANCE


def test_dense_stages(serve: Serve) -> None:
    oracle = random_model(LlamaConfig, LlamaForCausalLM)
    first, second = torch.nn.Linear(64, 96), torch.nn.Linear(96, 24, bias=False)
    first.requires_grad_(False)
    second.requires_grad_(False)

    def prepare(path: Path) -> None:
        stages = (("2_Dense", "Dense"), ("3_Dense", "Dense"), ("4_Normalize", "Normalize"))
        pooled_by("mean_tokens", stages=stages)(path)
        for folder, layer, name in (("2_Dense", first, "Tanh"), ("3_Dense", second, "Identity")):
            (path / folder).mkdir()
            tensors = {f"linear.{key}": value for key, value in layer.state_dict().items()}
            save_file(tensors, path / folder / "model.safetensors")
            config = {"activation_function": f"torch.nn.modules.linear.{name}"}
            (path / folder / "config.json").write_text(json.dumps(config))

    served = serve(oracle, prepare)
    assert served.hello.embedding_size == 24
    ids = prompts((9, 40))
    wanted = [unit(second(torch.tanh(first(states(oracle, item).mean(0))))) for item in ids]
    assert np.abs(served.vectors(ids) - np.array(wanted)).max() <= TOLERANCE


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (pooled_by("max_tokens"), "pools by"),
        (pooled_by("none"), "nothing"),
        (pooled_by("lasttoken", stages=(("2_CNN", "CNN"),)), "'CNN'"),
        (pooled_by("lasttoken", stages=(("../../etc", "Dense"),)), "elsewhere"),
        (pooled_by("lasttoken", stages=(("2_Dense", "Dense"),)), "cannot be read"),
    ],
    ids=["max", "none", "stage", "elsewhere", "absent"],
)
def test_stages_that_are_not_served_are_refused(
    serve: Serve, prepare: Callable[[Path], None], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        serve(random_model(LlamaConfig, LlamaForCausalLM), prepare)


@pytest.mark.parametrize(
    ("config", "model"),
    [(LlamaConfig, LlamaForSequenceClassification), (Qwen3Config, Qwen3ForSequenceClassification)],
)
def test_classifiers_score_as_in_transformers(serve: Serve, config: type, model: type) -> None:
    oracle = random_model(config, model, num_labels=1)
    served = serve(oracle)
    assert (served.hello.labels, served.hello.generates) == (1, False)
    ids = prompts()
    with torch.no_grad():
        wanted = [oracle(torch.tensor([item])).logits[0].numpy() for item in ids]
    scores = served.vectors(ids, readout="score", cache=True)
    assert np.abs(scores - np.array(wanted)).max() <= TOLERANCE
    alone = np.concatenate([served.vectors([item], readout="score") for item in ids])
    assert np.array_equal(alone, scores)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_logits_of_chosen_tokens(family: str, serve: Serve, tied: bool) -> None:
    config, model, knobs = FAMILIES[family]
    cap = {"final_logit_softcapping": 3.0} if family == "gemma3" else {}
    oracle = random_model(config, model, **knobs, **cap, tie_word_embeddings=tied)
    served = serve(oracle, score_ids=(12, 77))
    ids = prompts((20, 3, 99))
    with torch.no_grad():
        wanted = [oracle(torch.tensor([item])).logits[0, -1, [12, 77]].numpy() for item in ids]
    scores = served.vectors(ids, readout="score")
    assert np.abs(scores - np.array(wanted)).max() <= 2 * TOLERANCE


def test_prompts_that_begin_alike_share_their_prefix(serve: Serve) -> None:
    served = serve(random_model(LlamaConfig, LlamaForCausalLM), score_ids=(1, 2))
    shared = prompts((64,))[0]
    pairs = [[*shared, *tail] for tail in prompts((5, 9, 30))]
    cold = served.vectors(pairs, readout="score")
    before = served.loop.scheduler.cached_tokens
    one_tenant = served.vectors(pairs, readout="score", cache=True, tenant="a")
    first = served.loop.scheduler.cached_tokens - before
    again = served.vectors(pairs, readout="score", cache=True, tenant="a")
    warm = served.loop.scheduler.cached_tokens - before - first
    assert warm >= 3 * 64 and first >= 2 * 64
    assert np.array_equal(cold, one_tenant) and np.array_equal(cold, again)
    stranger = served.loop.scheduler.cached_tokens
    served.vectors(pairs[:1], readout="score", cache=True, tenant="b")
    assert served.loop.scheduler.cached_tokens == stranger, "tenants share a prefix"
    served.vectors(pairs[:1], pooling="mean", cache=True, tenant="a")
    assert served.loop.scheduler.cached_tokens == stranger, "a mean needs all states"


def test_a_deadline_ends_a_vector(serve: Serve) -> None:
    served = serve(random_model(LlamaConfig, LlamaForCausalLM))
    (late,) = served.read(prompts((100,)), deadline=time.time() - 1.0)
    assert (late.error_reason, late.vector) == ("DEADLINE", [])


def test_batch_vectors_wait_for_interactive_work(serve: Serve) -> None:
    served = serve(random_model(LlamaConfig, LlamaForCausalLM))
    ids = prompts((90,) * 6)
    batch = [EmbedSubmit(f"b{n}", item, interactive=False) for n, item in enumerate(ids)]
    live = [EmbedSubmit(f"i{n}", item) for n, item in enumerate(ids)]
    sent = served.run([*batch, *live])
    order = [item.request_id[0] for item in sent if isinstance(item, Embedding)]
    assert order == ["i"] * 6 + ["b"] * 6
