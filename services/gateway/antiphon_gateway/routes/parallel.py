"""Several generations as one: their choices are numbered on, their costs added up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Self

from msgspec.structs import replace

from antiphon_gateway.clients import GenerationStream, LlmClient
from antiphon_gateway.domain.generation import (
    Accepted,
    Completed,
    Delta,
    Finished,
    GenerateEvent,
    GenerateRequest,
    Timings,
    Usage,
)
from antiphon_gateway.routes.common import first_event


class Generations:
    """Runs one generation per request; leaving the block cancels all of them.

    Args:
        llm: the language models.
        requests: equal in their number of choices.
    """

    def __init__(self, llm: LlmClient, requests: Sequence[GenerateRequest]) -> None:
        self._llm = llm
        self._requests = requests
        self._stack = AsyncExitStack()
        self._streams: list[GenerationStream] = []

    async def __aenter__(self) -> Self:
        try:
            for request in self._requests:
                stream = self._llm.generate(request)
                self._streams.append(await self._stack.enter_async_context(stream))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def admitted(self) -> list[Accepted]:
        """The admissions in order.

        Raises:
            AntiphonError: one request was refused; none goes on then.
        """
        return [await first_event(stream) for stream in self._streams]

    async def events(self) -> AsyncIterator[GenerateEvent]:
        """The events of all generations as they come, one Completed last.

        Raises:
            AntiphonError: one generation failed.
        """
        if len(self._streams) == 1:
            async for event in self._streams[0]:
                yield event
            return
        queue: asyncio.Queue[GenerateEvent | Exception] = asyncio.Queue(maxsize=64)
        tasks = [
            asyncio.create_task(self._forward(index, queue)) for index in range(len(self._streams))
        ]
        completed: list[Completed] = []
        try:
            while len(completed) < len(tasks):
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, Completed):
                    completed.append(item)
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
        yield Completed(total_usage(completed), total_timings(completed))

    async def _forward(self, index: int, queue: asyncio.Queue[GenerateEvent | Exception]) -> None:
        offset = index * self._requests[index].choice_count
        try:
            async for event in self._streams[index]:
                if isinstance(event, Delta):
                    event.choice += offset
                elif isinstance(event, Finished):
                    event = replace(event, choice=event.choice + offset)
                await queue.put(event)
        except Exception as error:  # raised again by the reader of the queue
            await queue.put(error)


def total_usage(completed: Sequence[Completed], prompt_tokens: int = 0) -> Usage:
    """Added-up counts.

    Args:
        completed: finished generations.
        prompt_tokens: prompt tokens of generations that ended at their admission.
    """
    usages = [item.usage for item in completed]

    def known(name: str) -> int | None:
        values = [getattr(usage, name) for usage in usages]
        given = [value for value in values if value is not None]
        return sum(given) if given else None

    return Usage(
        prompt_tokens=prompt_tokens + sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        reasoning_tokens=known("reasoning_tokens"),
        audio_tokens=known("audio_tokens"),
        accepted_draft_tokens=known("accepted_draft_tokens"),
        rejected_draft_tokens=known("rejected_draft_tokens"),
    )


def total_timings(completed: Sequence[Completed]) -> Timings:
    """The longest of each phase, since the generations ran side by side."""
    timings = [item.timings for item in completed]
    return Timings(
        queued=max((item.queued for item in timings), default=0.0),
        prefill=max((item.prefill for item in timings), default=0.0),
        decode=max((item.decode for item in timings), default=0.0),
    )
