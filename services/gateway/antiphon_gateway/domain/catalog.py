"""What the backends serve at this moment."""

from __future__ import annotations

from msgspec import Struct

from antiphon_gateway.domain.generation import Modality
from antiphon_gateway.domain.speech import CodeFormat


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
    tenant: str = ""
    """Whose adapter it is."""
    shared: bool = False
    """Whether every tenant may use the adapter."""
    code_format: CodeFormat | None = None
    """What its speech codes mean; None for a model that writes none."""

    @property
    def key(self) -> tuple[str, str, bool]:
        """What tells it from others: tenants have names of adapters of their own."""
        return self.id, self.tenant, self.shared

    def visible_to(self, tenant: str) -> bool:
        """Whether a tenant may know of it."""
        return not self.base_model or self.shared or self.tenant == tenant
