"""Requests that wait, by class and tenant, and whose turn it is.

Within a class tenants take turns by deficit round robin (Shreedhar and Varghese, 1995): each
turn adds the tenant's quantum to its credit, an admission costs 1. Quanta are weights over the
smallest weight, so a turn always pays for at least one admission and choosing costs O(1).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from .request import Request, State


class Lane:
    """One tenant's waiting requests of one class, first come first served."""

    __slots__ = ("credit", "quantum", "requests", "tenant")

    def __init__(self, tenant: str, quantum: float) -> None:
        self.tenant = tenant
        self.quantum = quantum
        self.credit = 0.0
        self.requests: OrderedDict[Request, None] = OrderedDict()


class ClassQueue:
    """Waiting requests of one class.

    Args:
        weights: share of a tenant's admissions; 1 where not named.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        smallest = min([1.0, *weights.values()])
        self._quanta = {tenant: weight / smallest for tenant, weight in weights.items()}
        self._other_quantum = 1.0 / smallest
        self._lanes: dict[str, Lane] = {}
        self._turns: deque[Lane] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        return (request for lane in self._turns for request in lane.requests)

    def push(self, request: Request, *, front: bool = False) -> None:
        """Adds a request at the end of its tenant's lane, or at the front."""
        lane = self._lanes.get(request.tenant)
        if lane is None:
            quantum = self._quanta.get(request.tenant, self._other_quantum)
            lane = self._lanes[request.tenant] = Lane(request.tenant, quantum)
            self._turns.append(lane)
        lane.requests[request] = None
        if front:
            lane.requests.move_to_end(request, last=False)
        self._count += 1

    def discard(self, request: Request) -> bool:
        """Takes a request out without charging its tenant; False if it does not wait here."""
        lane = self._lanes.get(request.tenant)
        if lane is None or request not in lane.requests:
            return False
        del lane.requests[request]
        self._count -= 1
        if not lane.requests:
            # A tenant that waits for nothing saves up no credit.
            del self._lanes[lane.tenant]
            self._turns.remove(lane)
        return True

    def charge(self, request: Request) -> None:
        """Takes an admitted request out; its tenant pays, and yields once its credit is spent."""
        lane = self._lanes[request.tenant]
        lane.credit -= 1.0
        if self.discard(request) and lane.credit < 1.0 and lane.requests:
            self._turns.rotate(-1)

    def in_turn(self, has_room: Callable[[str], bool], window: int) -> Iterator[Request]:
        """Requests in the order in which they may be admitted, looking at ``window`` at most.

        The consumer calls ``charge`` for one that it admits, and nothing for one that it
        passes over. A tenant for which ``has_room`` is False is passed over altogether.
        """
        views: dict[Lane, _LaneView] = {}
        passed = 0
        while self._turns and passed < len(self._turns) and window > 0:
            window -= 1
            lane = self._turns[0]
            view = views.get(lane)
            if view is None:
                view = views[lane] = _LaneView(lane)
            request = view.next() if has_room(lane.tenant) else None
            if request is None:
                self._turns.rotate(-1)
                passed += 1
                continue
            if lane.credit < 1.0:
                lane.credit += lane.quantum
            yield request
            if request.row >= 0:
                passed = 0
            else:
                view.passed += 1

    def check_integrity(self, *, interactive: bool) -> None:
        """Raises unless all that wait are of this class, hold nothing and are counted."""
        waiting = list(self)
        if len(waiting) != self._count:
            raise RuntimeError("the count of waiting requests is wrong")
        for request in waiting:
            state = State.QUEUED if request.parked is None else State.PARKED
            if (
                request.state is not state
                or request.interactive is not interactive
                or request.row >= 0
                or request.ahead
                or request.written
            ):
                raise RuntimeError(f"{request.request_id} waits as {request.state}")


class _LaneView:
    """Reads a lane from its front while admitted requests leave it."""

    __slots__ = ("_ahead", "_lane", "_size", "passed")

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._ahead: list[Request] = []
        self._size = 2
        self.passed = 0
        """Requests that were read and stay."""

    def next(self) -> Request | None:
        """The next request that was not read yet."""
        if not self._ahead:
            self._size *= 2
            requests = self._lane.requests
            self._ahead = list(islice(requests, self.passed, self.passed + self._size))
            self._ahead.reverse()
        return self._ahead.pop() if self._ahead else None
