"""Fixtures of the kernel tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import antiphon_kernels
import pytest
import torch
from antiphon_kernels.cpu import build, library


def _mend_interpreter() -> None:
    """What triton 3.6's interpreter lacks for these kernels.

    Loop bounds that are tensors (it calls int() on a 1-d array, which numpy 2.4 refuses) and
    products of bfloat16 (it multiplies their bit patterns).
    """
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    dot = interpreter.InterpreterBuilder.create_dot

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != interpreter.tl.bfloat16:
            return handle
        bits = handle.data.astype("uint32") << 16
        return interpreter.TensorHandle(bits.view("float32"), interpreter.tl.float32)

    def wide_dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(builder, widened(a), widened(b), *rest)

    interpreter.InterpreterBuilder.create_dot = wide_dot


if not torch.cuda.is_available():
    # Without a device the same kernels run on CPU tensors; triton reads this as they are defined.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    _mend_interpreter()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the Triton kernels run: the GPU if there is one, else interpreted on the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session")
def isas() -> list[str]:
    """Instruction sets that can run here; empty without a compiler."""
    return build.supported_isas() if library.native() else []


ISAS = ["avx512vnni", "avx512", "avxvnni", "avx2", pytest.param("portable", marks=pytest.mark.slow)]
SAME_FLOATS = {"avx512": "avx512vnni", "avx2": "avxvnni"}
"""Sets that differ from a larger one in byte products only."""


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest, isas: list[str]) -> Iterator[str]:
    """Runs the test on the kernels of each instruction set with float arithmetic of its own."""
    if request.param not in isas or SAME_FLOATS.get(request.param) in isas:
        pytest.skip(f"no {request.param} of its own here")
    with library.use(request.param):
        yield request.param


@pytest.fixture(params=ISAS)
def byte_isa(request: pytest.FixtureRequest, isas: list[str]) -> Iterator[str]:
    """Runs the test on the kernels of each instruction set."""
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
def float32_products() -> None:
    """An engine that another test booted may have left int16 products behind."""
    antiphon_kernels.set_products("float32")


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh float tensors hold NaN, so that an element no kernel writes shows."""
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        tensor = empty(*args, **kwargs)  # type: ignore[call-overload]
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", poisoned)
