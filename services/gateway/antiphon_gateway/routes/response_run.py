"""One response from its admission to its end, and those that run in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from antiphon_core import metrics
from antiphon_core.errors import AntiphonError, Internal, Unavailable
from antiphon_core.logs import get_logger

from antiphon_gateway.domain.generation import Completed, Delta, Finished, GenerateEvent
from antiphon_gateway.identity.principal import current_principal
from antiphon_gateway.openai.chat_output import encode
from antiphon_gateway.openai.common import finish_reason_of
from antiphon_gateway.openai.response_items import Item
from antiphon_gateway.openai.response_output import (
    IncompleteDetails,
    Response,
    ResponseStatus,
    response_error,
    response_usage,
)
from antiphon_gateway.openai.response_stream import ResponseStream
from antiphon_gateway.routes.common import note_failure, now, write_events
from antiphon_gateway.sse import StreamWriter
from antiphon_gateway.store.records import StoredResponse

if TYPE_CHECKING:
    from antiphon_gateway.store.responses import ResponseTable

KEPT_SECONDS = 30 * 24 * 3600

log = get_logger(__name__)

_unkept = metrics.counter("responses_not_kept_total", "Responses that the store did not take")


class ResponseRun:
    """A response while the model is at work on it.

    Args:
        response: without output.
        given: the items that the request brought.
        table: where to keep it; None keeps nothing.
        with_logprobs: whether text carries log-probabilities.
    """

    def __init__(
        self,
        response: Response,
        given: list[Item],
        table: ResponseTable | None,
        *,
        with_logprobs: bool,
    ) -> None:
        self.response = response
        self.given = given
        self.tenant = current_principal().tenant
        self.over = asyncio.Event()
        """Set when it is kept, or never will be."""
        self._table = table
        self._stream = ResponseStream(response, first_item=len(given), with_logprobs=with_logprobs)
        self._finish_reason = ""
        self._keeping: asyncio.Future[None] | None = None
        self._owner: asyncio.Task[object] | None = None
        self._is_cancelled = False

    async def collect(self, events: AsyncIterator[GenerateEvent]) -> None:
        """Waits for the whole response and keeps it.

        Raises:
            AntiphonError: it failed; nothing is kept then, since nobody knows its id.
        """
        async for event in events:
            self._frame(event)
        await self._finish()

    async def write(self, writer: StreamWriter, events: AsyncIterator[GenerateEvent]) -> None:
        """Streams the response; however that ends, the store learns of it first.

        A failure is an event. Without a reader the response is kept as cancelled, and the
        exception that told of it goes on.
        """
        self._owner = asyncio.current_task()
        try:
            await writer.write(self._stream.begin())
            await write_events(writer, events, self._frame)
            frames = await self._finish()
        except AntiphonError as error:
            note_failure(error)
            self.response.error = response_error(error)
            frames = await self._end("failed")
        except asyncio.CancelledError:
            if not self._is_cancelled or self._owner is None or self._owner.uncancel():
                await self._end("cancelled")
                raise
            frames = await self._end("cancelled")
        except BaseException:
            await self._end("cancelled")
            raise
        await writer.write(frames)

    def cancel(self) -> None:
        """Ends a streamed response early; harmless when it is over."""
        if self._owner is not None and self._keeping is None and not self._is_cancelled:
            self._is_cancelled = True
            self._owner.cancel()

    def _frame(self, event: GenerateEvent) -> bytes:
        """The frames of one event; raises AntiphonError where the event is a failure."""
        if isinstance(event, Delta):
            return self._stream.delta(event)
        if isinstance(event, Finished):
            self._finish_reason = finish_reason_of(event)
        elif isinstance(event, Completed):
            self.response.usage = response_usage(event.usage)
        return b""

    async def _finish(self) -> bytes:
        if not self._finish_reason:
            raise Internal("the llm service completed without finishing the response")
        if self._finish_reason != "length":
            return await self._end("completed")
        self.response.incomplete_details = IncompleteDetails()
        return await self._end("incomplete")

    async def _end(self, status: ResponseStatus) -> bytes:
        """Closes and keeps the response, once; returns its last frames."""
        frames = b""
        if self._keeping is None:
            frames = self._stream.end("completed" if status == "completed" else "incomplete")
            self.response.status = status
            self.response.completed_at = now() if status == "completed" else None
            self._keeping = asyncio.ensure_future(self._keep())
        # Shielded: the row must be written even when the task ends because the client went away.
        await asyncio.shield(self._keeping)
        return frames + self._stream.terminal()

    async def _keep(self) -> None:
        try:
            if self._table is not None:
                await self._table.add(self._row())
        except Unavailable as error:
            # The client has its answer, which says that it cannot be had again.
            self.response.store = False
            _unkept.inc()
            log.error("response_not_kept", response=self.response.id, reason=error.reason)
        finally:
            self.over.set()

    def _row(self) -> StoredResponse:
        response = self.response
        return StoredResponse(
            id=response.id,
            tenant=self.tenant,
            previous_id=response.previous_response_id,
            created_at=response.created_at,
            expires_at=int(time.time()) + KEPT_SECONDS,
            input=encode(self.given),
            response=encode(response),
        )


class RunningResponses:
    """Streamed responses that this process works on, by id."""

    def __init__(self) -> None:
        self._runs: dict[str, ResponseRun] = {}

    @contextmanager
    def running(self, run: ResponseRun) -> Iterator[None]:
        """Makes the run findable inside the block."""
        self._runs[run.response.id] = run
        try:
            yield
        finally:
            del self._runs[run.response.id]

    def find(self, tenant: str, response_id: str) -> ResponseRun | None:
        """The tenant's response of an id, unless it is over."""
        run = self._runs.get(response_id)
        return run if run is not None and run.tenant == tenant and not run.over.is_set() else None
