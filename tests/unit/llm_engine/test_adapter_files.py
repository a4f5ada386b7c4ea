"""What is refused of an adapter's files, and where they may lie."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from antiphon_llm.engine.adapters.paths import AdapterRoot
from antiphon_llm.engine.adapters.refusal import AdapterRefused
from antiphon_llm.engine.adapters.registry import AdapterRegistry
from antiphon_llm.engine.adapters.weights import AdapterWeights, read_adapter
from antiphon_llm.models.adapters import ModuleShape
from safetensors.torch import load_file, save_file
from support.adapters import save_adapter

LAYERS = 2
SIZES = {
    "q_proj": (8, 12), "k_proj": (8, 4), "v_proj": (8, 4), "o_proj": (12, 8),
    "gate_proj": (8, 16), "up_proj": (8, 16), "down_proj": (16, 8),
}  # fmt: skip
SHAPES = [{name: ModuleShape(*size) for name, size in SIZES.items()}] * LAYERS


def read(path: Path, **limits: int) -> AdapterWeights:
    options = {"rank_max": 16, "byte_limit": 1 << 20, **limits}
    return read_adapter(AdapterRoot(str(path.parent)), path.name, shapes=SHAPES, **options)


def adapter(path: Path, **options: Any) -> Path:
    return save_adapter(path / "adapter", SIZES, LAYERS, **{"rank": 4, **options})


def refusal(path: Path, **limits: int) -> str:
    with pytest.raises(AdapterRefused) as caught:
        read(path, **limits)
    assert caught.value.field == "path"
    assert str(path.parent) not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "scale"),
    [({"lora_alpha": 8}, 2.0), ({"lora_alpha": 8, "use_rslora": True}, 4.0),
     ({"lora_alpha": 0.5}, 0.125), ({"lora_alpha": 4, "target_modules": "all-linear"}, 1.0),
     ({"lora_alpha": 4, "target_modules": r".*_proj"}, 1.0)],
)  # fmt: skip
def test_matrices_are_scaled_and_transposed(
    tmp_path: Path, settings: dict[str, Any], scale: float
) -> None:
    path = adapter(tmp_path, **settings)
    stored = load_file(path / "adapter_model.safetensors")
    found = read(path)
    assert found.rank == 4
    assert len(found.digest) == 32
    total = 0
    for layer, modules in enumerate(found.layers):
        assert modules.keys() == SIZES.keys()
        for module, part in modules.items():
            side = "mlp" if module in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            name = f"base_model.model.model.layers.{layer}.{side}.{module}"
            assert torch.equal(part.a, stored[f"{name}.lora_A.weight"])
            assert torch.equal(part.b, (stored[f"{name}.lora_B.weight"] * scale).t())
            total += part.a.nbytes + part.b.nbytes
    assert found.nbytes == total


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA', allowed is LORA"),
        ({"r": 0}, "r is '0', allowed is 1 to 16, [llm] adapter_rank_max"),
        ({"r": -4}, "r is '-4'"),
        ({"r": 17}, "r is '17', allowed is 1 to 16"),
        ({"r": "4"}, "r is '4'"),
        ({"r": True}, "r is 'True'"),
        ({"lora_alpha": None}, "lora_alpha is 'None', allowed is a finite number"),
        ({"lora_alpha": float("nan")}, "lora_alpha is 'nan'"),
        ({"lora_alpha": 10**400}, "lora_alpha is '1000"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes'"),
        ({"target_modules": ["q_proj", "lm_head"]}, "target_modules is \"['lm_head']\""),
        ({"target_modules": []}, "target_modules is '[]'"),
        ({"target_modules": None}, "target_modules is 'None'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is set"),
        ({"use_dora": True}, "use_dora is set, and DoRA rescales"),
        ({"bias": "all"}, "bias is 'all', allowed is none"),
        ({"lora_bias": True}, "lora_bias is set"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is set"),
        ({"layers_to_transform": [0]}, "layers_to_transform is set"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is set"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern is set"),
        ({"init_lora_weights": "pissa_niter_4"}, "fits a changed base model"),
        ({"brand_new_option": 3}, "brand_new_option is unknown here"),
    ],
)  # fmt: skip
def test_what_the_configuration_may_not_ask_for(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    assert message in refusal(adapter(tmp_path, **settings))


def test_keys_that_change_nothing_pass(tmp_path: Path) -> None:
    harmless = {"peft_version": "9.9", "qalora_group_size": 16, "exclude_modules": ["lm_head"],
                "eva_config": None, "brand_new_option": None, "revision": "main"}  # fmt: skip
    assert read(adapter(tmp_path, **harmless)).rank == 4


Tensors = dict[str, torch.Tensor]
FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def without(part: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if part in name]:
            del tensors[name]

    return change


def put(name: str, tensor: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("layers.0.self_attn.q_proj.lora_B"), "layer 0 has no lora_B of q_proj"),
        (without("layers.1.mlp.up_proj.lora_A"), "layer 1 has no lora_A of up_proj"),
        (without("layers.1.mlp.up_proj"), "misses layer 1 up_proj"),
        (without("o_proj"), "misses layer 0 o_proj, layer 1 o_proj"),
        (without("layers"), "misses layer 0 down_proj"),
        (put(FIRST, torch.zeros(5, 8)), "is (5, 8); rank 4 and the base model's q_proj want"),
        (put(FIRST, torch.zeros(4, 9)), "want (4, 8)"),
        (put(FIRST, torch.zeros(32)), "is (32,)"),
        (put(FIRST, torch.full((4, 8), float("inf"))), "not finite"),
        (put(FIRST, torch.zeros(4, 8, dtype=torch.float64)), "is F64, allowed are BF16, F16, F32"),
        (put(FIRST, torch.zeros(4, 8, dtype=torch.int8)), "is I8"),
        (put(FIRST.replace("layers.0", "layers.2"), torch.zeros(4, 8)), "the model has 2 layers"),
        (put(FIRST.replace("q_proj", "qkv_proj"), torch.zeros(4, 8)), "belongs to no module"),
        (put("base_model.model.lm_head.lora_A.weight", torch.zeros(4, 8)), "belongs to no module"),
        (put(FIRST.replace("lora_A.weight", "lora_magnitude_vector"), torch.zeros(8)),
         "belongs to no module"),
        (put(FIRST.replace(".weight", ".default.weight"), torch.zeros(4, 8)), "stands there twice"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_the_model(
    tmp_path: Path, change: Callable[[Tensors], None], message: str
) -> None:
    path = adapter(tmp_path)
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    assert message in refusal(path)


def test_bytes_are_bounded_before_they_are_read(tmp_path: Path) -> None:
    path = adapter(tmp_path)
    size = read(path).nbytes
    assert f"has {size} bytes, at most {size - 1}" in refusal(path, byte_limit=size - 1)
    assert read(path, byte_limit=size).nbytes == size


@pytest.mark.parametrize(
    "contents",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"r": 1' + b" " * (2 << 20)],
)
def test_a_broken_configuration(tmp_path: Path, contents: bytes) -> None:
    path = adapter(tmp_path)
    (path / "adapter_config.json").write_bytes(contents)
    assert "adapter_config.json" in refusal(path)


def test_broken_weights_are_refused_whatever_is_broken(tmp_path: Path) -> None:
    path = adapter(tmp_path)
    file = path / "adapter_model.safetensors"
    whole = file.read_bytes()
    chance = random.Random(3)
    read_well = read(path)
    for _ in range(120):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(min(2500, len(data)))] = chance.randrange(256)
        if chance.random() < 0.3:
            data = data[: chance.randrange(len(data))]
        file.write_bytes(bytes(data))
        try:
            found = read(path)
        except AdapterRefused as refused:
            assert refused.field == "path"
        else:
            assert found.nbytes == read_well.nbytes


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    path = adapter(tmp_path)
    (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")
    assert "adapter_model.bin is a pickle, which is never loaded" in refusal(path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root with an adapter, beside a secret that links and dots lead to."""
    root = tmp_path / "root"
    save_adapter(root / "team" / "good", SIZES, LAYERS, rank=4)
    save_adapter(tmp_path / "secret", SIZES, LAYERS, rank=4)
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to("..")
    (root / "inner").symlink_to("team/good")
    (root / "loop").symlink_to("loop")
    (root / "half").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (root / "half" / name).symlink_to(tmp_path / "secret" / name)
    os.mkfifo(root / "fifo")
    return root


def test_paths_that_stay_inside(tree: Path) -> None:
    root = AdapterRoot(str(tree))
    good = tree / "team" / "good"
    for path in ("team/good", "./team//good/", "inner", "team/../team/good", str(good)):
        assert root.directory(path) == good


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "../secret", "team/../../secret", "link", "up/secret", "up/root", "loop",
     "missing", "team/good/adapter_config.json", "fifo", "/", "/etc", "team/good\0", "\0",
     "a" * 300, "a/" * 600, "~", "~/x", "file:///etc", "\ud800"],
)  # fmt: skip
def test_paths_that_do_not(tree: Path, path: str) -> None:
    with pytest.raises(AdapterRefused, match="no directory beneath the adapter root"):
        AdapterRoot(str(tree)).directory(path)


def test_files_may_not_lie_elsewhere_either(tree: Path) -> None:
    with pytest.raises(AdapterRefused, match=r"no adapter_config\.json beneath"):
        read_adapter(AdapterRoot(str(tree)), "half", shapes=SHAPES, rank_max=8, byte_limit=1 << 20)


def test_random_paths_never_leave_the_root(tree: Path) -> None:
    chance = random.Random(11)
    root = AdapterRoot(str(tree))
    parts = ["..", ".", "", "team", "good", "link", "up", "inner", "secret", "root", "loop", "half"]
    kept = 0
    for _ in range(3000):
        path = "/".join(chance.choice(parts) for _ in range(chance.randint(1, 7)))
        try:
            found = root.directory(path)
        except AdapterRefused:
            continue
        kept += 1
        assert found.is_relative_to(tree) and found != tree and found.is_dir()
    assert kept > 50


def test_the_registry_against_a_model_of_it() -> None:
    """Random loads and unloads: no slot has two adapters, and every one is found again."""
    chance = random.Random(5)
    registry = AdapterRegistry(4, 1000)
    held: dict[tuple[str | None, str], Any] = {}
    versions: set[int] = set()
    for _ in range(3000):
        key = (chance.choice((None, "", "red")), chance.choice("xyz"))
        if chance.random() < 0.5:
            try:
                registry.reserve(*key)
            except AdapterRefused as refused:
                wanted = "ALREADY_EXISTS" if key in held else "SLOTS_FULL"
                assert refused.reason == wanted
                assert key in held or len(held) == 4
                continue
            if chance.random() < 0.2:
                registry.forgo(*key)
                continue
            size = chance.randint(1, 400)
            try:
                found = registry.add(*key, size)
            except AdapterRefused as refused:
                assert refused.reason == "MEMORY_PRESSURE"
                assert registry.nbytes + size > 1000
                registry.forgo(*key)
                continue
            held[key] = found
            assert found.version not in versions
            versions.add(found.version)
        elif key in held:
            gone = held.pop(key)
            registry.drop(gone)
            registry.vacate(gone)
        slots = [adapter.slot for adapter in held.values()]
        assert len(set(slots)) == len(slots) == len(registry)
        assert all(1 <= slot <= 4 for slot in slots)
        for tenant in ("", "red", "blue"):
            for name in "xyz":
                wanted = held.get((tenant, name)) or held.get((None, name))
                assert registry.find(tenant, name) == wanted
