"""Hidden states that a model keeps for drafters, against transformers', in any kind of step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from antiphon_llm.models.registry import build_model
from antiphon_nn.checkpoint import open_checkpoint
from torch import nn
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from .test_models import SHAPE, Feeder

LAYERS = (2, 0)
TOKENS = [(11 * place + place * place) % 150 for place in range(40)]


class Oracle:
    """A saved model and what transformers has behind its layers and before its final norm."""

    def __init__(self, path: Path, family: str) -> None:
        torch.manual_seed(3)
        self.path = path
        model = (
            LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation="eager"))
            if family == "llama"
            else Gemma3ForCausalLM(
                Gemma3TextConfig(**SHAPE, sliding_window=12, attn_implementation="eager")
            )
        )
        model.float().eval()
        with torch.no_grad():
            for parameter in model.model.layers.parameters():
                parameter.mul_(3.0)
        model.save_pretrained(path)
        self.states: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(model.model.layers):
            layer.register_forward_hook(self._keep(index))
        with torch.no_grad():
            model(torch.tensor([TOKENS]))

    def _keep(self, index: int) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            self.states[index] = states.reshape(len(TOKENS), -1)

        return hook


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(tmp_path_factory.mktemp(request.param), request.param)


def states_in_chunks(model: Any, chunks: list[int]) -> dict[int, torch.Tensor]:
    """What the model keeps of TOKENS, fed in these chunks; -1 is before the final norm."""
    feeder = Feeder(model)
    request = feeder.open("only", TOKENS)
    kept: dict[int, list[torch.Tensor]] = {}
    for count in chunks:
        feeder.feed([(request, count)])
        for layer, states in {-1: model.residual(count), **model.tapped(count)}.items():
            kept.setdefault(layer, []).append(states.clone())
    return {layer: torch.cat(parts) for layer, parts in kept.items()}


CHUNKS = {"whole": [40], "pieces": [7, 16, 17], "decode": [10, *[1] * 30]}
"""Single tokens run as a recorded program from the second on."""


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_states_are_those_behind_the_layers(
    oracle: Oracle, dtype: torch.dtype, chunks: list[int]
) -> None:
    model = build_model(open_checkpoint(oracle.path), dtype=dtype)
    taps = model.tap(LAYERS)
    kept = states_in_chunks(model, chunks)
    assert set(kept) == {-1, *LAYERS}
    for layer, states in kept.items():
        expected = oracle.states[len(model.spec.layers) - 1 if layer < 0 else layer]
        error = (states.float() - expected).norm() / expected.norm()
        assert error < (1e-5 if dtype == torch.float32 else 0.05), layer
    if dtype == torch.float32 and len(chunks) > 30:
        assert model.programs.replays == 29 and not model.programs.fallbacks
    assert taps.nbytes == taps.predict_bytes(max(chunks))


def test_taps_change_nothing_and_cost_nothing_where_nobody_asks(oracle: Oracle) -> None:
    plain, tapped = (build_model(open_checkpoint(oracle.path)) for _ in range(2))
    tapped.tap(LAYERS)
    assert plain.tapped(5) == {}
    logits = []
    for model in (plain, tapped):
        feeder = Feeder(model)
        logits += feeder.feed([(feeder.open("only", TOKENS), 40)])
    assert torch.equal(*logits)


def test_steps_wider_than_the_fixed_memory_keep_their_states(oracle: Oracle) -> None:
    model = build_model(open_checkpoint(oracle.path), fixed_tokens=8)
    taps = model.tap(LAYERS)
    assert taps.predict_bytes(40) > taps.nbytes
    taps.reserve(40)
    assert taps.predict_bytes(40) == taps.nbytes
    kept = states_in_chunks(model, [40])
    assert torch.allclose(kept[0], oracle.states[0], atol=1e-4)
    assert taps.predict_bytes(40) == taps.nbytes


def test_a_layer_that_is_not_there_is_refused(oracle: Oracle) -> None:
    model = build_model(open_checkpoint(oracle.path))
    with pytest.raises(ValueError, match=r"layers \[-1, 3\] cannot be tapped; .* 0 to 2"):
        model.tap((3, 0, -1))
