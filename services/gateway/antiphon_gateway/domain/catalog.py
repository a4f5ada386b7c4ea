"""What the backends serve at this moment."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_gateway.domain.generation import Modality


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A served language model or adapter."""

    id: str
    context_limit: int
    input_modalities: tuple[Modality, ...]
    output_modalities: tuple[Modality, ...]
    chat: bool
    """Whether chat messages are served (a template exists)."""
    fingerprint: str = ""
    base_model: str = ""
    """An adapter's base; empty for a base model."""
    aliases: tuple[str, ...] = ()
    created_at: int = 0
    """Seconds since the epoch."""
