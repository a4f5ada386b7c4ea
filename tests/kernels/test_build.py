"""The build of the native kernels: cached, safe to race for, and honest when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from antiphon_kernels import fallbacks, implementations
from antiphon_kernels.cpu import build, library
from antiphon_kernels.quant_linear import dequantise, pack, quant_linear
from antiphon_kernels.quant_linear.cases import Shape, random_blocks


def test_without_a_compiler_the_reason_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler"):
        build.library_path("avx2", tmp_path)


def test_a_failing_compiler_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "COMMON_FLAGS", ("-std=no-such-standard",))
    with pytest.raises(build.BuildError, match=r"compiler failed: .*no-such-standard") as caught:
        build.library_path("avx2", tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.so"))


def test_a_cached_library_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"antiphon-kernels-avx2-{build._fingerprint('avx2')}.so"
    (tmp_path / name).touch()
    monkeypatch.setattr(build, "COMPILERS", ())
    assert build.library_path("avx2", tmp_path) == tmp_path / name


def test_another_source_is_another_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = build._fingerprint("avx2")
    (tmp_path / "changed.cpp").write_text("int changed;")
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    assert build._fingerprint("avx2") != before


def test_the_reference_serves_where_nothing_could_be_built() -> None:
    shape = Shape(40, 256)
    weight = pack(random_blocks("Q4_1", shape, scale=0.1), "Q4_1", (shape.rows, shape.columns))
    x = dequantise(weight)[:3]
    before = fallbacks.get("quant_linear: reference chosen", 0)
    with library.use("reference"):
        assert implementations()["quant_linear"] == "reference (reference chosen)"
        result = quant_linear(x, weight)
    assert (result - x @ dequantise(weight).T).abs().max() < 1e-3
    assert fallbacks["quant_linear: reference chosen"] == before + 1
