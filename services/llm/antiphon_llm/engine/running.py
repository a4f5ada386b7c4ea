"""Requests that hold a row, by class and state, oldest first."""

from __future__ import annotations

import bisect

from .request import Request, State


class Running:
    """Lists of running requests, by class: True is interactive."""

    def __init__(self) -> None:
        self.prefilling: dict[bool, list[Request]] = {True: [], False: []}
        self.decoding: dict[bool, list[Request]] = {True: [], False: []}

    def __len__(self) -> int:
        return self.count(True) + self.count(False)

    def count(self, interactive: bool) -> int:
        """Rows of the class."""
        return len(self.prefilling[interactive]) + len(self.decoding[interactive])

    def of(self, interactive: bool) -> list[Request]:
        """Requests of the class, prefills first."""
        return self.prefilling[interactive] + self.decoding[interactive]

    def in_order(self) -> list[Request]:
        """All, oldest first."""
        return sorted(self.of(True) + self.of(False), key=_age)

    def open(self, request: Request) -> None:
        """The request got a row."""
        request.move(State.PREFILLING)
        bisect.insort(self.prefilling[request.interactive], request, key=_age)

    def decode(self, request: Request) -> None:
        """The request's prompt is complete."""
        request.move(State.DECODING)
        self.prefilling[request.interactive].remove(request)
        bisect.insort(self.decoding[request.interactive], request, key=_age)

    def close(self, request: Request) -> None:
        """The request loses its row; its state is still the one that it had with it."""
        lists = self.decoding if request.state is State.DECODING else self.prefilling
        lists[request.interactive].remove(request)

    def check_integrity(self) -> None:
        """Raises unless every list has its class and state, in order."""
        for state, lists in (
            (State.PREFILLING, self.prefilling),
            (State.DECODING, self.decoding),
        ):
            for interactive, requests in lists.items():
                if requests != sorted(requests, key=_age) or any(
                    request.state is not state or request.interactive is not interactive
                    for request in requests
                ):
                    raise RuntimeError(f"the list of {state} requests is wrong")


def _age(request: Request) -> int:
    return request.sequence
