"""The matrices of an adapter: read, checked against the base model, scaled."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from antiphon_kernels.lora import LowRank
from safetensors import SafetensorError, safe_open

from antiphon_llm.models.adapters import MODULES, ModuleShape

from .paths import CONFIG, WEIGHTS, AdapterRoot
from .peft_config import PeftConfig, read_config
from .refusal import AdapterRefused

_TENSOR = re.compile(
    r"(?:base_model\.model\.)?(?:model\.)?(?:language_model\.)?(?:model\.)?"
    r"layers\.(0|[1-9][0-9]{0,5})\.(?:self_attn|mlp)\.([a-z_]+)\.lora_([AB])(?:\.default)?\.weight"
)
_DTYPES = {"F32", "F16", "BF16"}
_LISTED = 5
_HASHED_BYTES = 1 << 20

LayerShapes = Sequence[Mapping[str, ModuleShape]]
"""The base model's products: modules by layer."""


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """An adapter that fits the base model."""

    layers: list[dict[str, LowRank]]
    """fp32, contiguous; B transposed, with the adapter's scale in it."""
    rank: int
    nbytes: int
    digest: str
    """Of both files."""


def read_adapter(
    root: AdapterRoot, path: str, *, shapes: LayerShapes, rank_max: int, byte_limit: int
) -> AdapterWeights:
    """Reads an adapter's directory as the PEFT library writes it.

    Args:
        root: that it has to lie beneath.
        path: of the directory.
        shapes: of the base model's products.
        rank_max: largest rank.
        byte_limit: of its matrices in fp32.

    Raises:
        AdapterRefused: with what is wrong; nothing was kept.
    """
    directory = root.directory(path)
    config_file, weights_file = root.file(directory, CONFIG), root.file(directory, WEIGHTS)
    config = read_config(config_file, rank_max=rank_max)
    try:
        with safe_open(weights_file, framework="pt") as file:
            names = _located(file.keys(), config, len(shapes))
            nbytes = _check_shapes(file, names, config, shapes)
            if nbytes > byte_limit:
                raise AdapterRefused(
                    f"the adapter has {nbytes} bytes, at most {byte_limit} are held "
                    "([llm] adapter_bytes)",
                    "TOO_LARGE", field="path", limit=byte_limit, observed=nbytes,
                )  # fmt: skip
            layers = _read(file, names, config, len(shapes))
    except (SafetensorError, OSError) as error:
        raise AdapterRefused(
            f"{WEIGHTS} is no valid safetensors file: {error}", field="path"
        ) from error
    return AdapterWeights(layers, config.rank, nbytes, _digest(config_file, weights_file))


Names = dict[tuple[int, str], dict[str, str]]
"""Tensor name of A and B by layer and module."""


def _located(names: Sequence[str], config: PeftConfig, layers: int) -> Names:
    """Every tensor at its place.

    Raises:
        AdapterRefused: a tensor has no place, a pair is half, or a module misses in some layers.
    """
    found: Names = {}
    for name in names:
        match = _TENSOR.fullmatch(name)
        if match is None or match[2] not in MODULES:
            raise AdapterRefused(
                f"{WEIGHTS}: tensor {name[:200]!r} belongs to no module that an adapter may "
                f"change; those are lora_A and lora_B of {', '.join(MODULES)}",
                field="path",
            )
        layer, pair = int(match[1]), match[3]
        if layer >= layers:
            raise AdapterRefused(
                f"{WEIGHTS}: tensor {name!r} is of layer {layer}; the model has {layers} layers",
                field="path", limit=layers, observed=layer,
            )  # fmt: skip
        if pair in found.setdefault((layer, match[2]), {}):
            raise AdapterRefused(f"{WEIGHTS}: {name!r} stands there twice", field="path")
        found[layer, match[2]][pair] = name
    for (layer, module), pair in found.items():
        if len(pair) == 1:
            missing = "B" if "A" in pair else "A"
            raise AdapterRefused(
                f"{WEIGHTS}: layer {layer} has no lora_{missing} of {module}", field="path"
            )
    modules = {module for _, module in found} | (config.targets or frozenset())
    if not modules:
        raise AdapterRefused(f"{WEIGHTS} has no tensor", field="path")
    absent = [
        f"layer {layer} {module}"
        for module in sorted(modules)
        for layer in range(layers)
        if (layer, module) not in found
    ]
    if absent:
        more = f" and {len(absent) - _LISTED} more" if len(absent) > _LISTED else ""
        raise AdapterRefused(
            f"{WEIGHTS} misses {', '.join(absent[:_LISTED])}{more}: an adapter covers a module in "
            "every layer, and all modules that it names",
            field="path",
        )
    return found


def _check_shapes(file: Any, names: Names, config: PeftConfig, shapes: LayerShapes) -> int:
    """Checks what the header says; returns the bytes of all matrices in fp32."""
    elements = 0
    for (layer, module), pair in names.items():
        shape = shapes[layer][module]
        wanted = {"A": (config.rank, shape.inputs), "B": (shape.outputs, config.rank)}
        for half, name in pair.items():
            stored = file.get_slice(name)
            dims = tuple(stored.get_shape())
            if dims != wanted[half]:
                raise AdapterRefused(
                    f"{WEIGHTS}: {name!r} is {dims}; rank {config.rank} and the base model's "
                    f"{module} want {wanted[half]}",
                    field="path",
                )
            if stored.get_dtype() not in _DTYPES:
                raise AdapterRefused(
                    f"{WEIGHTS}: {name!r} is {stored.get_dtype()}, allowed are "
                    f"{', '.join(sorted(_DTYPES))}",
                    field="path",
                )
            elements += dims[0] * dims[1]
    return elements * torch.float32.itemsize


def _read(file: Any, names: Names, config: PeftConfig, layers: int) -> list[dict[str, LowRank]]:
    read: list[dict[str, LowRank]] = [{} for _ in range(layers)]
    for (layer, module), pair in names.items():
        a = file.get_tensor(pair["A"]).float().contiguous()
        b = (file.get_tensor(pair["B"]).float().t() * config.scale).contiguous()
        for name, tensor in (("A", a), ("B", b)):
            if not tensor.isfinite().all():
                raise AdapterRefused(
                    f"{WEIGHTS}: {pair[name]!r} has values that are not finite", field="path"
                )
        read[layer][module] = LowRank(a, b)
    return read


def _digest(*files: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        with path.open("rb") as file:
            while piece := file.read(_HASHED_BYTES):
                digest.update(piece)
        digest.update(b"\0")
    return digest.hexdigest()
