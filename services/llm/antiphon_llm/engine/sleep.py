"""Sleep: the engine finishes what it has, forgets its cache and gives its memory back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from antiphon_core.logs import get_logger

from antiphon_llm.messages import Done, Sleep, Wake

from .door import ASLEEP, Door
from .failures import FailureKind, classify, error_reason
from .runner import Runner
from .scheduler import Scheduler

_log = get_logger(__name__)


class Sleeper:
    """Answers each Sleep and Wake with one Done. ``clock`` is monotonic seconds.

    Attributes:
        asleep: whether the memory has been given back.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner[Any],
        door: Door,
        answer: Callable[[Done], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._door = door
        self._answer = answer
        self._clock = clock
        self._waiting: list[tuple[float, str]] = []
        self.asleep = False

    def sleep(self, message: Sleep) -> None:
        """Refuses new work from now on; sleeps as soon as what runs has ended."""
        self._door.shut(ASLEEP)
        self._waiting.append((self._clock() + message.timeout_s, message.request_id))

    def wake(self, message: Wake) -> None:
        """Takes the memory again and lets work in; a sleep that has not begun is called off."""
        for _, request_id in self._waiting:
            self._answer(Done(request_id, "woken before everything had ended", "WRONG_STATE"))
        self._waiting.clear()
        if self.asleep:
            try:
                self._runner.wake()
            except Exception as error:
                kind = classify(error)
                if kind is not FailureKind.OUT_OF_MEMORY:
                    raise
                self._answer(Done(message.request_id, f"{error}", error_reason(kind)))
                return
            self.asleep = False
            _log.info("awake")
        self._door.open(ASLEEP)
        self._answer(Done(message.request_id))

    def advance(self, busy: bool) -> None:
        """Falls asleep when nothing runs any more; gives up those whose time is over."""
        if not self._waiting:
            return
        if not busy:
            released = 0 if self.asleep else self._fall_asleep()
            for _, request_id in self._waiting:
                self._answer(Done(request_id, released_bytes=released))
            self._waiting.clear()
            return
        now = self._clock()
        over = [request_id for until, request_id in self._waiting if until <= now]
        self._waiting = [item for item in self._waiting if item[0] > now]
        if not self._waiting:
            self._door.open(ASLEEP)
        for request_id in over:
            self._answer(Done(request_id, "requests still run", "WRONG_STATE"))

    def _fall_asleep(self) -> int:
        self._scheduler.flush()
        released = self._runner.sleep()
        self.asleep = True
        _log.info("asleep", released_bytes=released)
        return released
