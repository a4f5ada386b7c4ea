"""Who gives way when entries or rows are short."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .request import Request


class Victims:
    """Running requests in the order in which they give way; built once per plan.

    Batch before interactive, then the tenant with the lowest weight, then the newest. Within
    a class nobody gives way to a younger request: so the oldest of a class, once it runs, runs
    to its end, and every request is the oldest some day.
    """

    def __init__(self, running: Iterable[Request], weight: Callable[[str], float]) -> None:
        self._order = sorted(
            running, key=lambda r: (r.interactive, weight(r.tenant), -r.sequence), reverse=True
        )

    def next_for(self, request: Request, step: int, *, batch_only: bool) -> Request | None:
        """The next victim; never one with a row in this step, nor interactive for batch.

        Requests of one class ask in the order of their age.
        """
        while self._order:
            victim = self._order[-1]
            if victim.interactive and (batch_only or not request.interactive):
                return None
            self._order.pop()
            elder = (
                victim.interactive is request.interactive and victim.sequence <= request.sequence
            )
            if victim.row >= 0 and victim.planned != step and not elder:
                return victim
        return None
