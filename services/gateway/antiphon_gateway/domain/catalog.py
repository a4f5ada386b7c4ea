"""What the backends serve at this moment."""

from __future__ import annotations

from msgspec import Struct

from antiphon_gateway.domain.generation import Modality


class ModelInfo(Struct, frozen=True):
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
