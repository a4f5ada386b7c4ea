"""The bundled multi-token prediction head against a plain reference, and in the engine."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from antiphon_llm.messages import Sampling, Submit
from antiphon_llm.models.config_reader import UnsupportedConfig
from antiphon_llm.speculation import mtp
from antiphon_nn.errors import CheckpointError
from transformers import LlamaConfig, LlamaForCausalLM

from .drafting import (
    SHAPE,
    MtpReference,
    add_tensors,
    chain,
    deepseek_names,
    qwen_names,
    scale,
    served,
    served_on_device,
    submits,
    target,
)

LAYERS = 4


class Bundled:
    """A target whose checkpoint has a head, and the reference of both."""

    def __init__(self, path: Path, layout: str, *, seed: int = 9) -> None:
        self.path = path
        family = "qwen3" if layout == "qwen" else "llama"
        self.model = target(path, layers=LAYERS, family=family)
        embedding = self.model.model.embed_tokens.weight.detach()
        head = self.model.lm_head.weight.detach()
        self.reference = MtpReference(embedding, head, norms=layout == "qwen")
        scale(self.reference, seed)
        self.save(layout)

    def save(self, layout: str) -> None:
        if layout == "qwen":
            add_tensors(self.path, qwen_names(self.reference))
        else:
            names = deepseek_names(self.reference, LAYERS)
            add_tensors(self.path, names, num_nextn_predict_layers=1)

    def drafts(self, tokens: list[int], depth: int) -> list[int]:
        with torch.no_grad():
            output = self.model(torch.tensor([tokens]), output_hidden_states=True)
        # The last of them is behind the final norm.
        return chain(self.reference, tokens, output.hidden_states[-1][0], depth)


@pytest.fixture(scope="module", params=["qwen", "deepseek"])
def bundled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundled:
    return Bundled(tmp_path_factory.mktemp(request.param), request.param)


def greedy(name: str, prompt: list[int], **fields: Any) -> Submit:
    own = {key: fields.pop(key) for key in ("interactive",) if key in fields}
    settings = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True, **fields}
    return Submit(name, prompt, Sampling(**settings), **own)


def drafting(bundled: Bundled, endpoint: Any, **fields: Any) -> Any:
    return served(bundled.path, endpoint, **{"drafter": "mtp", "draft_depth": 4, **fields})


def assert_reference_drafts(bundled: Bundled, recorded: list[Any]) -> None:
    """None is left out, and of every few one is as the reference has it."""
    assert len(recorded) > 20
    for row in recorded:
        assert len(row.drafts) == row.depth, row.request_id
    for row in recorded[:: 1 + len(recorded) // 40]:
        assert row.drafts == bundled.drafts(row.tokens, row.depth), row.tokens


def test_drafts_are_the_references_greedy_chain(bundled: Bundled, endpoint_type: Any) -> None:
    engine = drafting(bundled, endpoint_type())
    engine.run(submits(10, sampled=0.0, repetition_penalty=1.0, frequency_penalty=0.0))
    assert_reference_drafts(bundled, engine.drafted)


def test_a_cached_prefix_drafts_as_a_cold_start(bundled: Bundled, endpoint_type: Any) -> None:
    engine = drafting(bundled, endpoint_type())
    shared = [(7 * place) % 90 for place in range(33)]
    branches = [shared[:29] + tail for tail in ([1, 2, 3, 4, 5], [80, 2, 3], [81])]
    engine.run([greedy("publisher", shared)])
    for place, prompt in enumerate(branches):
        # Each branch publishes entries behind the shared ones; the next finds them all.
        engine.run([greedy(f"{place}", prompt)])
        assert engine.ends[f"{place}"].cached_tokens == 28
        (first, *_) = [row for row in engine.drafted if row.request_id == f"{place}"]
        assert len(first.tokens) == len(prompt) + 1
    assert_reference_drafts(bundled, engine.drafted)


def test_a_parked_and_a_preempted_request_draft_on(bundled: Bundled, endpoint_type: Any) -> None:
    for parked_bytes in (0, 1 << 20):
        engine = drafting(
            bundled,
            endpoint_type(),
            kv_entries=26,
            max_rows=3,
            prefix_cache=False,
            parked_bytes=parked_bytes,
        )
        chance = random.Random(5)
        prompts = [[chance.randrange(90) for _ in range(30)] for _ in range(6)]
        engine.submit([greedy(f"b{n}", p, interactive=False) for n, p in enumerate(prompts[:3])])
        for _ in range(8):
            engine.step()
        engine.run([greedy(f"i{n}", p, max_tokens=40) for n, p in enumerate(prompts[3:])])
        scheduler = engine.loop.scheduler
        assert scheduler.preemptions and bool(scheduler.parking.parked_total) == bool(parked_bytes)
        assert_reference_drafts(bundled, engine.drafted)


@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_speculation_changes_no_token(
    bundled: Bundled, endpoint_type: Any, overlap_depth: int
) -> None:
    messages = submits(24)
    plain = served(bundled.path, endpoint_type(), overlap_depth=overlap_depth).run(messages)
    for depth in (1, 3):
        engine = drafting(
            bundled, endpoint_type(), draft_depth=depth, overlap_depth=overlap_depth
        ).run(messages)
        assert engine.tokens == plain.tokens
        assert engine.accepted + engine.rejected > 100


def permuting(path: Path, *, after_final_norm: bool) -> None:
    """A target whose next token is a permutation of its last, and a head that knows it from the
    hidden state alone: it multiplies the state by the permutation once more.

    The final norm turns the signs of half the state, and the head expects the state from one
    side of it.
    """
    size = SHAPE["hidden_size"]
    torch.manual_seed(2)
    settings = {**SHAPE, "num_hidden_layers": 2, "vocab_size": size, "eos_token_id": 0}
    model = LlamaForCausalLM(LlamaConfig(**settings)).float().eval()
    step = torch.eye(size)[torch.randperm(size)]
    signs = torch.where(torch.arange(size) % 2 == 0, 1.0, -1.0)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.model.norm.weight.copy_(signs)
        model.lm_head.weight.copy_(step * signs)
    embedding, head = model.model.embed_tokens.weight.detach(), model.lm_head.weight.detach()
    reference = MtpReference(embedding, head, norms=False)
    with torch.no_grad():
        for norm in (reference.pre_fc_norm_embedding, reference.pre_fc_norm_hidden):
            norm.weight.fill_(1.0)
        reference.norm.weight.copy_(signs)
        reference.layers[0].self_attn.o_proj.weight.zero_()
        reference.layers[0].mlp.down_proj.weight.zero_()
        reference.fc.weight[:, :size] = 0.0
        reference.fc.weight[:, size:] = step * signs if after_final_norm else step
    model.save_pretrained(path)
    add_tensors(path, qwen_names(reference))


def permuted(count: int) -> list[Submit]:
    chance = random.Random(8)
    prompts = [[chance.randrange(64) for _ in range(1 + 3 * n)] for n in range(count)]
    return [greedy(f"{n}", prompt, temperature=n % 2 * 0.1) for n, prompt in enumerate(prompts)]


@pytest.mark.parametrize("layout_says", [True, False])
def test_a_head_that_reads_the_right_hidden_state_is_always_right(
    tmp_path: Path, endpoint_type: Any, monkeypatch: pytest.MonkeyPatch, layout_says: bool
) -> None:
    """Drafts of every depth hang on the state before them: of the target, then of the head. A
    layout with the wrong side of the final norm runs as well."""
    known = mtp.layouts
    monkeypatch.setattr(
        mtp,
        "layouts",
        lambda layers: [replace(item, after_final_norm=layout_says) for item in known(layers)],
    )
    acceptance = {}
    for made_for in (True, False):
        path = tmp_path / f"{made_for}"
        permuting(path, after_final_norm=made_for)
        plain = served(path, endpoint_type()).run(permuted(8))
        fields = {"drafter": "mtp", "draft_depth": 3}
        engine = served(path, endpoint_type(), **fields).run(permuted(8))
        assert engine.tokens == plain.tokens
        acceptance[made_for] = engine.acceptance
    assert acceptance[layout_says] == 1.0
    assert acceptance[not layout_says] < 0.5


def test_of_several_heads_the_first_is_chained(tmp_path: Path, endpoint_type: Any) -> None:
    bundled = Bundled(tmp_path, "deepseek")
    second = {
        name.replace(f"layers.{LAYERS}.", f"layers.{LAYERS + 1}."): torch.zeros_like(tensor)
        for name, tensor in deepseek_names(bundled.reference, LAYERS).items()
    }
    add_tensors(tmp_path, second, num_nextn_predict_layers=2)
    engine = drafting(bundled, endpoint_type()).run([greedy("a", [3, 1, 4]), greedy("b", [5])])
    assert_reference_drafts(bundled, engine.drafted)
    add_tensors(tmp_path, {}, num_nextn_predict_layers=1)
    with pytest.raises(CheckpointError, match=rf"model\.layers\.{LAYERS + 1}\.eh_proj"):
        served(tmp_path, endpoint_type())


@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_dense_weights_of_accelerators_leave_the_same_states(
    tmp_path: Path, endpoint_type: Any, overlap_depth: int
) -> None:
    """In bfloat16 products join the residual stream at once, elsewhere its parts lie apart."""
    permuting(tmp_path, after_final_norm=True)
    fields = {"dtype": "bfloat16", "overlap_depth": overlap_depth}
    plain = served_on_device(tmp_path, endpoint_type(), **fields).run(permuted(8))
    engine = served_on_device(
        tmp_path, endpoint_type(), drafter="mtp", draft_depth=3, **fields
    ).run(permuted(8))
    assert engine.tokens == plain.tokens
    assert engine.acceptance == 1.0
    # A sleep takes the head's weights as well, and gives them back as they were.
    runner, seen = engine.loop.runner, len(engine.drafted)
    engine.loop.scheduler.flush(None)
    released = runner.sleep()
    assert released > plain.loop.runner.sleep()
    runner.wake()
    engine.run([greedy("after", [9, 8, 7])])
    assert engine.ends["after"].rejected_drafts == 0 and len(engine.drafted) > seen


def test_a_checkpoint_without_a_head_is_refused_by_name(tmp_path: Path, endpoint_type: Any) -> None:
    target(tmp_path, layers=2)
    with pytest.raises(UnsupportedConfig, match=r"no MTP head: no mtp\.fc\.weight \(Qwen3-Next\)"):
        served(tmp_path, endpoint_type(), drafter="mtp", draft_depth=2)


def test_the_head_is_left_out_where_nobody_drafts_and_read_whole_where_somebody_does(
    tmp_path: Path, endpoint_type: Any
) -> None:
    bundled = Bundled(tmp_path, "qwen")
    plain = served(tmp_path, endpoint_type())
    head = drafting(bundled, endpoint_type())
    weights = [engine.loop.owners._owners[0].bytes for engine in (plain, head)]
    assert weights[0] == weights[1]
    add_tensors(tmp_path, {"mtp.surplus.weight": torch.zeros(3)})
    served(tmp_path, endpoint_type())
    with pytest.raises(CheckpointError, match=r"no place in the model: mtp\.surplus\.weight"):
        drafting(bundled, endpoint_type())


def test_a_projection_of_the_wrong_width_is_refused(tmp_path: Path, endpoint_type: Any) -> None:
    bundled = Bundled(tmp_path, "qwen")
    add_tensors(tmp_path, {"mtp.fc.weight": torch.zeros(64, 64)})
    with pytest.raises(UnsupportedConfig, match=r"mtp\.fc is \(64, 64\), expected \(64, 128\)"):
        drafting(bundled, endpoint_type())
