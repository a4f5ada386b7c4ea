"""Rounded activations on the real models: close to float32 products, and worth counting."""

from __future__ import annotations

from pathlib import Path

import antiphon_kernels
import pytest
from antiphon_kernels.cpu import library
from antiphon_llm.checkpoint import resolve
from antiphon_llm.models.registry import build_model
from antiphon_nn.checkpoint import open_checkpoint

from bench.divergence import divergence, english

LIMIT = 0.02
"""Mean KL divergence in nats that the engine's issue allows."""


@pytest.mark.parametrize(
    ("alias", "tokens"),
    [
        ("smollm2-135m-instruct", 256),
        pytest.param("gemma-3-270m", 768, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_distributions_stay_close_to_those_of_float32(
    tmp_path: Path, alias: str, tokens: int
) -> None:
    if library.native() is None:
        pytest.skip("int16 products are native kernels")
    path = resolve(alias, tmp_path).path
    model = build_model(open_checkpoint(str(path)))
    before = antiphon_kernels.products()
    found = divergence(model, english(path)[:tokens])
    # Zero would mean that the same arithmetic ran twice.
    assert 1e-9 < found < LIMIT
    assert antiphon_kernels.products() == before
    assert not any(name.startswith("quant_linear: Q") for name in antiphon_kernels.fallbacks)
