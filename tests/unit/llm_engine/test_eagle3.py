"""An EAGLE-3 head against a plain reference, and in the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from antiphon_llm.messages import Sampling, Submit
from antiphon_llm.models.config_reader import UnsupportedConfig

from .drafting import (
    VOCABULARY,
    Eagle3Reference,
    chain,
    save_eagle3,
    scale,
    served,
    submits,
    target,
)

LAYERS = 8


class Headed:
    """A target, a head in a checkpoint of its own, and the reference of both."""

    def __init__(self, path: Path, ids: list[int], taps: tuple[int, ...], **config: Any) -> None:
        self.path, self.head, self.taps = path / "target", path / "head", taps
        self.model = target(self.path, layers=LAYERS, family="llama")
        embedding = self.model.model.embed_tokens.weight.detach()
        self.reference = Eagle3Reference(embedding, torch.tensor(ids))
        scale(self.reference, 12)
        save_eagle3(self.head, self.reference, **config)

    def drafts(self, tokens: list[int], depth: int) -> list[int]:
        with torch.no_grad():
            states = self.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
            # Number k is the input of layer k, and so the output of k - 1.
            fused = self.reference.fc(torch.cat([states[tap + 1][0] for tap in self.taps], dim=1))
        return chain(self.reference, tokens, fused, depth)


@pytest.fixture(scope="module")
def headed(tmp_path_factory: pytest.TempPathFactory) -> Headed:
    ids = [token for token in range(VOCABULARY) if token % 3]
    return Headed(tmp_path_factory.mktemp("eagle3"), ids, (1, 3, 4))


def drafting(headed: Headed, endpoint: Any, **fields: Any) -> Any:
    own = {"drafter": "eagle3", "draft_model_path": str(headed.head), "draft_depth": 4}
    return served(headed.path, endpoint, **{**own, **fields})


def assert_reference_drafts(headed: Headed, recorded: list[Any]) -> None:
    assert len(recorded) > 20
    for row in recorded:
        assert len(row.drafts) == row.depth, row.request_id
    for row in recorded[:: 1 + len(recorded) // 40]:
        assert row.drafts == headed.drafts(row.tokens, row.depth), row.tokens


GREEDY = {"repetition_penalty": 1.0, "frequency_penalty": 0.0}


def test_drafts_are_the_references_greedy_chain(headed: Headed, endpoint_type: Any) -> None:
    engine = drafting(headed, endpoint_type()).run(submits(10, sampled=0.0, **GREEDY))
    assert_reference_drafts(headed, engine.drafted)
    assert all(draft % 3 for row in engine.drafted for draft in row.drafts)


@pytest.mark.parametrize(
    ("config", "taps"),
    [
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 7]}}, (0, 3, 7)),
        ({"eagle_aux_hidden_state_layer_ids": [5, 1, 3]}, (4, 0, 2)),
    ],
    ids=["outputs", "inputs"],
)
def test_both_numberings_of_tapped_layers_in_their_order(
    tmp_path: Path, endpoint_type: Any, config: dict[str, Any], taps: tuple[int, ...]
) -> None:
    """The last layer's output is tapped before the final norm."""
    headed = Headed(tmp_path, list(range(VOCABULARY)), taps, **config)
    engine = drafting(headed, endpoint_type(), draft_depth=2)
    assert engine.loop.speculation.drafter.tap_layers == taps
    engine.run(submits(4, sampled=0.0, **GREEDY))
    if LAYERS - 1 in taps:
        hidden: list[torch.Tensor] = []
        headed.model.model.norm.register_forward_pre_hook(lambda _, args: hidden.append(args[0][0]))
        rows = engine.drafted[::5]
        for row in rows:
            with torch.no_grad():
                states = headed.model(
                    torch.tensor([row.tokens]), output_hidden_states=True
                ).hidden_states
                parts = [hidden[-1] if tap == LAYERS - 1 else states[tap + 1][0] for tap in taps]
                fused = headed.reference.fc(torch.cat(parts, dim=1))
            assert row.drafts == chain(headed.reference, row.tokens, fused, row.depth)
    else:
        assert_reference_drafts(headed, engine.drafted)


def test_speculation_changes_no_token(headed: Headed, endpoint_type: Any) -> None:
    messages = submits(24)
    plain = served(headed.path, endpoint_type()).run(messages)
    for depth in (2, 7):
        engine = drafting(headed, endpoint_type(), draft_depth=depth).run(messages)
        assert engine.tokens == plain.tokens
        assert engine.accepted + engine.rejected > 100


def test_a_cached_prefix_drafts_as_a_cold_start(headed: Headed, endpoint_type: Any) -> None:
    engine = drafting(headed, endpoint_type())
    shared = [(7 * place) % 90 for place in range(33)]
    settings = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)
    for name, tail in (("a", [5]), ("b", [1, 2, 3]), ("c", [80])):
        engine.run([Submit(name, shared[:29] + tail, settings)])
    assert [engine.ends[name].cached_tokens for name in "abc"] == [0, 28, 28]
    assert_reference_drafts(headed, engine.drafted)


def test_steps_keep_their_taps_in_recorded_programs_too(headed: Headed, endpoint_type: Any) -> None:
    """Requests that draft nothing decode one token a step, which the programs replay."""
    engine = drafting(headed, endpoint_type(), draft_depth=2)
    model = engine.loop.owners._owners[0].holder
    settings = Sampling(temperature=0.0, max_tokens=30, ignore_eos=True, draft_depth=0)
    engine.run([Submit("quiet", [3, 1, 4, 1, 5], settings)])
    assert model.programs.replays > 20 and not model.programs.fallbacks
    # Whoever continues its text finds cells that those steps filled.
    text = [3, 1, 4, 1, 5, *engine.tokens["quiet"]]
    settings = Sampling(temperature=0.0, max_tokens=24, ignore_eos=True)
    engine.run([Submit("next", text, settings)])
    assert engine.ends["next"].cached_tokens >= 28
    for row in engine.drafted:
        assert row.drafts == headed.drafts(row.tokens, row.depth)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"vocab_size": 95}, "vocab_size is 95; supported: 96"),
        ({"hidden_size": 32}, "hidden_size is 32; supported: 64"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2; supported: 1"),
        ({"norm_before_fc": True}, "norm_before_fc is True; supported: False"),
        ({"draft_vocab_size": 32}, r"lm_head have \[64\] outputs, the config says \[32\]"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, r"outputs of layers \[-1, 0, 1\]"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, "fc.weight takes 192 inputs, expected 128"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_head_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, endpoint_type: Any, config: dict[str, Any], message: str
) -> None:
    ids = [token for token in range(VOCABULARY) if token % 3]
    headed = Headed(tmp_path, ids, (1, 3, 4), **config)
    with pytest.raises(UnsupportedConfig, match=message):
        drafting(headed, endpoint_type())
