"""The front's side of the phonemizer process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon_core.errors import AntiphonError, FailedPrecondition, Internal, Unavailable
from antiphon_core.ipc.worker import Worker, WorkerExit, WorkerProcess
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.logs import get_logger

from antiphon_vocoder.messages import (
    PhonemizeReply,
    PhonemizeRequest,
    PhonemizerOutbound,
    PhonemizerReady,
    Stop,
)
from antiphon_vocoder.metrics import SpeechMetrics

COMPONENT = "phonemizer"
_ANSWER_SECONDS = 10.0
_RETRY_SECONDS = 1.0

log = get_logger("vocoder.phonemizer")


@dataclass
class _Pending:
    request: PhonemizeRequest
    answer: asyncio.Future[str]
    sent_again: bool = False


class Phonemizer:
    """Starts the espeak-ng process and asks it.

    A request that the process died under is asked once more of its successor; a text that kills
    two processes fails.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        metrics: SpeechMetrics,
        make_worker: Callable[..., Worker] = WorkerProcess,
    ) -> None:
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._ids = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._ready = asyncio.Event()
        self._failure = ""
        self._booted = False
        self.version = ""
        self._worker = make_worker(
            name=COMPONENT,
            module="antiphon_vocoder.text.worker",
            inbound=PhonemizerOutbound,
            on_message=self._on_message,
            on_exit=self._on_exit,
            stop_message=Stop(),
        )

    @property
    def pid(self) -> int | None:
        """Process id while alive."""
        return self._worker.pid

    @property
    def restarts(self) -> int:
        """Restarts so far."""
        return self._worker.restarts

    async def start(self) -> None:
        """Starts the process and waits until espeak-ng is loaded.

        Raises:
            FailedPrecondition: it does not load; the message says why.
        """
        await self._worker.start()
        await self._ready.wait()
        if self._failure:
            raise FailedPrecondition(
                f"the phonemizer cannot start: {self._failure}; run `make setup`",
                reason="BOOT_FAILED",
            )
        self._booted = True

    async def stop(self, grace: float) -> None:
        """Ends the process."""
        await self._worker.stop(grace)

    async def phonemize(self, texts: Sequence[str], voice: str) -> list[str]:
        """IPA of each text.

        Args:
            voice: espeak-ng's voice name.

        Raises:
            Unavailable: the process died twice under a text, or does not answer.
            Internal: espeak-ng has no such voice.
        """
        pending = [
            _Pending(
                PhonemizeRequest(next(self._ids), text, voice),
                asyncio.get_running_loop().create_future(),
            )
            for text in texts
        ]
        for item in pending:
            self._pending[item.request.id] = item
            self._worker.send(item.request)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return [await item.answer for item in pending]
        except TimeoutError:
            raise _unavailable("did not answer") from None
        finally:
            for item in pending:
                self._pending.pop(item.request.id, None)

    def _on_message(self, message: Any) -> None:
        if isinstance(message, PhonemizeReply):
            pending = self._pending.get(message.id)
            if pending is None or pending.answer.done():
                return
            if message.error:
                pending.answer.set_exception(Internal(message.error))
            else:
                pending.answer.set_result(message.phonemes)
        elif isinstance(message, PhonemizerReady):
            self.version = message.version
            self._failure = self._failure or message.error
            self._ready.set()
            self._lifecycle.recovered(COMPONENT)

    def _on_exit(self, exit_record: WorkerExit) -> None:
        if not self._booted:
            self._failure = self._failure or f"it died with {exit_record.description}"
            self._ready.set()
            return
        error = _unavailable(f"died ({exit_record.description})")
        for pending in list(self._pending.values()):
            if exit_record.will_restart and not pending.sent_again:
                pending.sent_again = True
                self._worker.send(pending.request)
            elif not pending.answer.done():
                pending.answer.set_exception(error)
        if exit_record.will_restart:
            self._metrics.worker_restarts.labels(COMPONENT).inc()
            self._lifecycle.degraded(COMPONENT, f"restarting after {exit_record.description}")
        else:
            self._lifecycle.failed(
                f"the phonemizer died too often, last by {exit_record.description}"
            )


def _unavailable(what: str) -> AntiphonError:
    return Unavailable(f"the phonemizer {what}", reason="WORKER_DIED", retry_after=_RETRY_SECONDS)
