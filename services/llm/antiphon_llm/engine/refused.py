"""A request that cannot be served."""

from __future__ import annotations


class RequestRefused(Exception):
    """This request cannot be served; ``reason`` is an ErrorReason name without prefix.

    ``limit`` and ``observed`` are the bound that refused it, where it was one.
    """

    def __init__(
        self,
        message: str,
        reason: str,
        *,
        retry_after: float = 0.0,
        limit: float | None = None,
        observed: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after
        self.limit = limit
        self.observed = observed
