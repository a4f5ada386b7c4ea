"""Fixtures of the kernel tests."""

from __future__ import annotations

from collections.abc import Iterator

import antiphon_kernels
import pytest
import torch
from antiphon_kernels.cpu import build, library


@pytest.fixture(scope="session")
def isas() -> list[str]:
    """Instruction sets that can run here; empty without a compiler."""
    return build.supported_isas() if library.native() else []


@pytest.fixture(params=["avx512", "avx2", pytest.param("portable", marks=pytest.mark.slow)])
def isa(request: pytest.FixtureRequest, isas: list[str]) -> Iterator[str]:
    """Runs the test on each instruction set's kernels."""
    if request.param not in isas:
        pytest.skip(f"no {request.param} here")
    with library.use(request.param):
        yield request.param


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Runs the test with several team sizes."""
    before = antiphon_kernels.threads()
    antiphon_kernels.set_threads(request.param)
    yield request.param
    antiphon_kernels.set_threads(before)


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh float tensors hold NaN, so that an element no kernel writes shows."""
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        tensor = empty(*args, **kwargs)  # type: ignore[call-overload]
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", poisoned)
