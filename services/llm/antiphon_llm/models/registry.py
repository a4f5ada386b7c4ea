"""From a checkpoint's architecture name to the module that implements it."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING

from antiphon_core.logs import get_logger

from antiphon_llm import fingerprint

from .config_reader import ConfigReader, UnsupportedConfig

if TYPE_CHECKING:
    import torch
    from antiphon_nn.checkpoint import Checkpoint

    from .decoder import Decoder
    from .spec import DecoderSpec

_log = get_logger(__name__)

FAMILIES: dict[str, str] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "LlamaModel": "llama",
    "Qwen2Model": "qwen2",
    "Qwen3Model": "qwen3",
    "Gemma3TextModel": "gemma3",
    "LlamaForSequenceClassification": "llama",
    "Qwen2ForSequenceClassification": "qwen2",
    "Qwen3ForSequenceClassification": "qwen3",
    "Gemma3TextForSequenceClassification": "gemma3",
}
"""Architecture name to module of this package. Each has ``decoder_spec(reader)``. Those that are
no ``ForCausalLM`` embed and score, and draw nothing."""


def architecture_of(checkpoint: Checkpoint) -> str:
    """The first of the config's architectures; UnsupportedConfig if it is not served."""
    names = checkpoint.config.get("architectures") or ["(none)"]
    if names[0] not in FAMILIES:
        raise UnsupportedConfig(
            f"architecture {names[0]!r} is not served; known: {', '.join(sorted(FAMILIES))}"
        )
    return names[0]


def tokenizer_fingerprint(checkpoint: Checkpoint) -> str:
    """What the front compares its own tokenizer with; empty where the files have none."""
    from antiphon_nn.gguf_checkpoint import GgufCheckpoint

    if isinstance(checkpoint, GgufCheckpoint):
        return fingerprint.of_metadata(checkpoint.metadata)
    return fingerprint.of_directory(checkpoint.path)


def build_model(
    checkpoint: Checkpoint,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    fixed_tokens: int = 0,
) -> Decoder:
    """Builds the checkpoint's model with its weights on a device.

    Steps of up to ``fixed_tokens`` tokens run in memory whose addresses never change; 0 takes
    the decoder's own default. dtype None is float32, packed weights as stored.

    Raises UnsupportedConfig for an unknown architecture or an unsupported config value.
    """
    import torch

    from .bare import BareCheckpoint
    from .decoder import Decoder
    from .workspace import FIXED_TOKENS

    architecture = architecture_of(checkpoint)
    family = importlib.import_module(f".{FAMILIES[architecture]}", __package__)
    reader = ConfigReader(checkpoint.config, architecture)
    spec: DecoderSpec = family.decoder_spec(reader)
    if isinstance(checkpoint, BareCheckpoint) or not architecture.endswith("ForCausalLM"):
        # Nothing draws with the embedding's head but the warm-up.
        spec = replace(spec, tied_head=True, generates=False)
    unread = reader.unread()
    if unread:
        _log.warning("config_keys_not_used", architecture=architecture, keys=unread)
    return Decoder(
        spec,
        checkpoint,
        device=device,
        dtype=dtype or torch.float32,
        fixed_tokens=fixed_tokens or FIXED_TOKENS,
    )
