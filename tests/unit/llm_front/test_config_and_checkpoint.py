"""Settings that contradict are refused; models are found, verified and named when missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from antiphon_core.config import ConfigError, load_settings
from antiphon_core.errors import FailedPrecondition
from antiphon_llm import checkpoint
from antiphon_llm.checkpoint import PackagedModel, resolve
from antiphon_llm.config import LlmSettings
from antiphon_llm.front.model import load_text_model


def load(*flags: str) -> LlmSettings:
    return load_settings(LlmSettings, section="llm", argv=flags, environ={})


def test_defaults_follow_the_device() -> None:
    cpu = load().engine_config(Path("m.gguf"))
    assert (cpu.max_rows, cpu.step_tokens, cpu.prefill_chunk, cpu.queue_limit) == (8, 512, 256, 64)
    gpu = load("--device", "cuda").engine_config(Path("m.gguf"))
    assert (gpu.max_rows, gpu.step_tokens, gpu.prefill_chunk) == (64, 4096, 2048)
    assert gpu.queue_limit == 512
    assert (cpu.overlap_depth, gpu.overlap_depth) == (0, 1)
    chosen = load("--overlap-depth", "1", "--reserved-bytes", "5").engine_config(Path("m.gguf"))
    assert (chosen.overlap_depth, chosen.reserved_bytes) == (1, 5)


def test_a_drafter_and_its_checkpoint_reach_the_engine() -> None:
    flags = ("--drafter", "model", "--draft-depth", "3", "--draft-model", "small")
    config = load(*flags).engine_config(Path("m.gguf"), Path("small.gguf"))
    assert (config.drafter, config.draft_depth) == ("model", 3)
    assert config.draft_model_path == "small.gguf"
    plain = load().engine_config(Path("m.gguf"))
    assert (plain.drafter, plain.draft_depth, plain.draft_model_path) == ("", 0, "")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--graphs", "on"), "eager by declaration"),
        (("--graph-rows-max", "8"), "eager by declaration"),
        (("--overlap-depth", "2"), "overlap_depth"),
        (("--batch-rows-max", "9"), "batch_rows_max 9 is larger than max_rows 8"),
        (
            ("--device", "cuda", "--graph-rows-max", "65"),
            "graph_rows_max 65 is larger than max_rows 64",
        ),
        (("--tenant-rows-max", "9"), "tenant_rows_max 9 is larger than max_rows 8"),
        (("--tenant-weights", '{"blue": 0}'), "tenant_weights of 'blue' is 0"),
        (("--upload-mode", "packed"), "uploads are views"),
        (("--dtype", "bfloat16"), "dtype bfloat16 is not served on cpu"),
        (("--max-rows", "500"), "step_tokens 512 is smaller than max_rows 500 plus"),
        (("--memory-share", "0"), "memory_share is 0"),
        (("--step-tokens", "4"), "smaller than max_rows"),
        (("--prefill-chunk", "1024"), "larger than step_tokens"),
        (("--device", "tpu"), "device"),
        (("--max-rows", "x"), "max_rows"),
        (("--max-row", "4"), "did you mean 'max_rows'"),
        (("--drafter", "ngram"), "drafter is 'ngram' and draft_depth 0"),
        (("--draft-valve", "on:0"), "draft_valve"),
        (("--draft-failure-limit", "0"), "draft_failure_limit is 0"),
        (
            ("--drafter", "ngram", "--draft-depth", "2", "--draft-accept", "residual"),
            "residual is not served by drafter 'ngram'",
        ),
        (
            ("--drafter", "ngram", "--draft-depth", "4", "--step-tokens", "20", "--max-rows", "2"),
            "leaves no room for a row with drafts",
        ),
        (("--draft-depth", "2"), "drafter is '' and draft_depth 2"),
        (("--drafter", "model", "--draft-depth", "2"), "model and eagle3 need one"),
        (
            ("--drafter", "mtp", "--draft-depth", "2", "--draft-model", "x.gguf"),
            "others have none",
        ),
    ],
)
def test_unserved_values_are_refused(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(*flags)


def test_digests_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve("smollm2-135m-instruct", tmp_path)
    assert (first.kind, first.name) == ("gguf", "smollm2-135m-instruct")

    def no_reading(*_: object) -> None:
        raise AssertionError("the file was read again")

    monkeypatch.setattr(checkpoint.hashlib, "file_digest", no_reading)
    assert resolve("smollm2-135m-instruct", tmp_path) == first


def test_parts_are_joined_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "part_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a").write_bytes(b"one")
    (package / "b").write_bytes(b"two")
    monkeypatch.syspath_prepend(tmp_path)
    digest = checkpoint.hashlib.sha256(b"onetwo").hexdigest()
    model = PackagedModel("parts", (("part_package", "a"), ("part_package", "b")), digest, "m.gguf")
    monkeypatch.setitem(checkpoint.PACKAGED_MODELS, "parts", model)
    source = resolve("parts", tmp_path / "cache")
    assert source.path.read_bytes() == b"onetwo"
    (package / "b").write_bytes(b"TWO")
    source.path.unlink()
    with pytest.raises(FailedPrecondition, match="parts are damaged"):
        resolve("parts", tmp_path / "cache")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = PackagedModel("some-package", (("no_such_module", "m.gguf"),), "", "m.gguf")
    monkeypatch.setitem(checkpoint.PACKAGED_MODELS, "absent", model)
    with pytest.raises(FailedPrecondition, match=r"some-package.*make setup"):
        resolve("absent", tmp_path)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nonsense", "no alias"),
        ("/no/such.gguf", "no such file"),
        ("./no/such", "no such file"),
    ],
)
def test_what_is_no_model_is_explained(tmp_path: Path, model: str, message: str) -> None:
    with pytest.raises(FailedPrecondition, match=message) as caught:
        resolve(model, tmp_path)
    assert caught.value.field == "model"


def test_directories_and_files(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"no config\.json"):
        resolve(str(tmp_path), tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert resolve(str(tmp_path), tmp_path).kind == "directory"
    (tmp_path / "weights.bin").touch()
    with pytest.raises(FailedPrecondition, match=r"must be a \.gguf"):
        resolve(str(tmp_path / "weights.bin"), tmp_path)


def test_a_text_file_as_gguf_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("these are my notes, not a model")
    with pytest.raises(FailedPrecondition, match=r"notes\.gguf: not a GGUF file"):
        load_text_model(resolve(str(path), tmp_path), "")


def test_the_default_models_facts(tmp_path: Path) -> None:
    loaded = load_text_model(resolve("smollm2-135m-instruct", tmp_path), "")
    assert loaded.weights.quantisation == "Q4_1"
    assert loaded.weights.parameter_count == 134_515_008
    assert loaded.template is not None
