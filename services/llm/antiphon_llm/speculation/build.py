"""Which drafter a configuration asks for."""

from __future__ import annotations

from antiphon_llm.messages import EngineConfig

from .drafter import Drafter
from .ngram import NgramDrafter


def build_drafter(config: EngineConfig) -> Drafter | None:
    """The drafter, or None for none; ValueError for one that this build does not serve."""
    if not config.drafter:
        return None
    if config.drafter == "ngram":
        return NgramDrafter()
    raise ValueError(f"drafter is {config.drafter!r}; served here: ngram")
