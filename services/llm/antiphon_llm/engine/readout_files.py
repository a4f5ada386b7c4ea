"""What a checkpoint says of pooling and scoring, read before its decoder is built.

sentence-transformers checkpoints list their stages in ``modules.json``: the transformer, a
Pooling, perhaps Dense stages, and Normalize, each with a folder of its own. GGUF files have a
``pooling_type``. A ``*ForSequenceClassification`` checkpoint has a ``score`` matrix of
(labels, hidden).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphon_nn.checkpoint import Checkpoint
from antiphon_nn.errors import CheckpointError
from antiphon_nn.gguf_checkpoint import GgufCheckpoint
from safetensors import SafetensorError
from safetensors.numpy import load_file

from .readout import DenseStage, Pooling, Readout

_MODES = {"mean": Pooling.MEAN, "lasttoken": Pooling.LAST, "cls": Pooling.CLS}
"""sentence-transformers' names."""
_MODE_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_GGUF_POOLING = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}
_ACTIVATIONS = {"": False, "Identity": False, "Tanh": True}
"""Last parts of the classes that a Dense stage may name, and whether that is tanh."""


def read_readouts(checkpoint: Checkpoint, score_ids: Sequence[int]) -> dict[str, Readout]:
    """What can be read off the model's prompts, by the name in EmbedSubmit.

    Args:
        checkpoint: of the model.
        score_ids: tokens whose logits behind a prompt score it; empty for none.

    Raises:
        CheckpointError: a stage that is not served, or files that are damaged.
    """
    found = {"embedding": _embedding(checkpoint)}
    if "score.weight" in checkpoint:
        bias = checkpoint.tensor("score.bias").numpy() if "score.bias" in checkpoint else None
        stage = DenseStage(checkpoint.tensor("score.weight").numpy(), bias)
        found["score"] = Readout(stages=(stage,), normalise=False)
    elif score_ids:
        tied = "lm_head.weight" not in checkpoint
        head = "model.embed_tokens.weight" if tied else "lm_head.weight"
        stage = DenseStage(checkpoint.rows(head, score_ids).numpy())
        cap = float(checkpoint.config.get("final_logit_softcapping") or 0.0)
        found["score"] = Readout(stages=(stage,), softcap=cap, normalise=False)
    return found


def _embedding(checkpoint: Checkpoint) -> Readout:
    if isinstance(checkpoint, GgufCheckpoint):
        architecture = checkpoint.metadata.get("general.architecture", "")
        kind = checkpoint.metadata.get(f"{architecture}.pooling_type")
        return Readout(_GGUF_POOLING.get(kind if isinstance(kind, int) else 0, Pooling.LAST))
    pooling, stages = Pooling.LAST, []
    modules = checkpoint.path / "modules.json"
    for module in _json(modules) if modules.is_file() else ():
        kind = str(module.get("type", "")).rpartition(".")[2]
        folder = checkpoint.path / str(module.get("path", ""))
        if folder.resolve() != (inside := checkpoint.path.resolve()) and (
            inside not in folder.resolve().parents
        ):
            raise CheckpointError(modules, f"names a folder elsewhere: {module.get('path')!r}")
        if kind == "Pooling":
            pooling = _pooling(folder / "config.json")
        elif kind == "Dense":
            stages.append(_dense(folder))
        elif kind not in ("Transformer", "Normalize"):
            raise CheckpointError(
                modules,
                f"has a stage {kind!r}; served are Transformer, Pooling, Dense and Normalize",
            )
    return Readout(pooling, tuple(stages))


def _pooling(path: Path) -> Pooling:
    config = _json(path)
    mode = config.get("pooling_mode")
    modes = [mode] if mode else [name for flag, name in _MODE_FLAGS.items() if config.get(flag)]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise CheckpointError(
            path, f"pools by {modes or 'nothing'}; served is one of {', '.join(_MODES)}"
        )
    pooling = _MODES[modes[0]]
    if pooling is not Pooling.LAST and config.get("include_prompt") is False:
        raise CheckpointError(path, "include_prompt is false, which is served for lasttoken only")
    return pooling


def _dense(folder: Path) -> DenseStage:
    config = _json(folder / "config.json")
    activation = str(config.get("activation_function") or "").rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise CheckpointError(
            folder / "config.json",
            f"activation_function is {activation!r}; served are Identity and Tanh",
        )
    path = folder / "model.safetensors"
    try:
        tensors = load_file(path)
        weight = tensors["linear.weight"].astype("float32")
    except (OSError, SafetensorError, TypeError) as error:
        raise CheckpointError(path, f"cannot be read: {error}") from error
    except KeyError:
        raise CheckpointError(path, "has no tensor 'linear.weight'") from None
    bias = tensors.get("linear.bias")
    return DenseStage(
        weight, None if bias is None else bias.astype("float32"), _ACTIVATIONS[activation]
    )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(path, f"cannot be read: {error}") from error
