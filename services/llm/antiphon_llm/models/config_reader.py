"""Reading a language model's config.json: what every family shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon_nn import config_reader
from antiphon_nn.config_reader import UnsupportedConfig

from antiphon_llm import output_spec

__all__ = ["IRRELEVANT", "ConfigReader", "UnsupportedConfig"]

IRRELEVANT: dict[str, str] = {
    **config_reader.IRRELEVANT,
    **dict.fromkeys(("pretraining_tp",), "concerns training or another runtime"),
    **dict.fromkeys(("cache_implementation",), "describes the file"),
    **dict.fromkeys(
        ("bos_token_id", "eos_token_id", "pad_token_id"),
        "read by the tokenizer and the checkpoint's end-of-text set",
    ),
    output_spec.KEY: "read by the front and the engine's intake",
    **dict.fromkeys(
        ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
        "read by the drafter that uses the bundled head",
    ),
}
"""Keys that no family needs, with the reason."""


class ConfigReader(config_reader.ConfigReader):
    """Typed access to a language model's config, with its lists of layers."""

    def __init__(self, config: Mapping[str, Any], family: str) -> None:
        super().__init__(config, family, IRRELEVANT)

    def layer_types(self, layers: int, default: Sequence[str]) -> list[str]:
        """``full_attention`` or ``sliding_attention`` for each layer."""
        kinds = ("full_attention", "sliding_attention")
        types = list(self.raw("layer_types", list(default)))
        unknown = sorted(set(types) - set(kinds))
        if unknown or len(types) != layers:
            raise UnsupportedConfig(
                f"{self.family}: layer_types has {len(types)} items for {layers} layers, "
                f"of kinds {sorted(set(types))}; supported: {', '.join(kinds)}"
            )
        return types
