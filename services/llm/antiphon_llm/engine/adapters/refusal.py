"""An adapter that cannot be loaded, unloaded or used."""

from __future__ import annotations

from antiphon_llm.engine.refused import RequestRefused


class AdapterRefused(RequestRefused):
    """``field`` is the one of LoadAdapter or UnloadAdapter to blame."""

    def __init__(
        self,
        message: str,
        reason: str = "INVALID_VALUE",
        *,
        field: str = "",
        limit: float | None = None,
        observed: float | None = None,
    ) -> None:
        super().__init__(message, reason, limit=limit, observed=observed)
        self.field = field
