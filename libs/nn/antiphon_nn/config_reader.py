"""Reading a checkpoint's config.json honestly.

A model asks for each key that it implements. Values that it does not implement are refused
by name; keys that nobody asked for, and that are not known to be irrelevant, are reported,
because an ignored ``rope_scaling`` or bias gives wrong output without an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

IRRELEVANT: dict[str, str] = {
    **dict.fromkeys(
        ("initializer_range", "attention_dropout", "use_cache"),
        "concerns training or another runtime",
    ),
    **dict.fromkeys(
        ("torch_dtype", "dtype", "transformers_version", "_name_or_path", "model_type",
         "architectures", "_attn_implementation_autoset"),
        "describes the file",
    ),
    **dict.fromkeys(
        ("return_dict", "output_attentions", "output_hidden_states", "id2label", "label2id",
         "problem_type", "chunk_size_feed_forward", "is_encoder_decoder"),
        "concerns the Python object of another library",
    ),
}  # fmt: skip
"""Keys that no model needs, with the reason."""

_REQUIRED = object()


class UnsupportedConfig(ValueError):
    """A config value that this implementation does not serve, or that is missing or malformed."""


class ConfigReader:
    """Typed access to a config mapping that remembers which keys were read.

    Args:
        config: the mapping.
        family: what error messages call the model.
        irrelevant: keys that need no reader, with the reason.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        family: str,
        irrelevant: Mapping[str, str] = IRRELEVANT,
    ) -> None:
        self._config = config
        self.family = family
        self._irrelevant = irrelevant
        self._read: set[str] = set()

    def raw(self, key: str, default: Any = _REQUIRED) -> Any:
        """The value as it is; a missing or null one gives the default."""
        self._read.add(key)
        value = self._config.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise UnsupportedConfig(f"{self.family}: config has no {key!r}")
        return default

    def integer(self, key: str, default: Any = _REQUIRED, *, least: int = 1) -> int:
        """A whole number of at least ``least``."""
        value = self.raw(key, default)
        if isinstance(value, bool) or int(value) != value or value < least:
            raise UnsupportedConfig(
                f"{self.family}: {key} is {value!r}, expected a whole number of at least {least}"
            )
        return int(value)

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        """A number."""
        value = self.raw(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UnsupportedConfig(f"{self.family}: {key} is {value!r}, expected a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or False."""
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise UnsupportedConfig(f"{self.family}: {key} is {value!r}, expected true or false")
        return value

    def choice(self, key: str, allowed: Sequence[Any], default: Any = _REQUIRED) -> Any:
        """One of the allowed values."""
        value = self.raw(key, default)
        if value not in allowed:
            raise UnsupportedConfig(
                f"{self.family}: {key} is {value!r}; supported: "
                f"{', '.join(repr(item) for item in allowed)}"
            )
        return value

    def unread(self) -> list[str]:
        """Keys with a value that nobody asked for and that are not known to be irrelevant."""
        return sorted(
            key
            for key, value in self._config.items()
            if key not in self._read and key not in self._irrelevant and value not in (None, False)
        )
