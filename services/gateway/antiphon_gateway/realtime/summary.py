"""Makes the summary of old conversation, behind everything else."""

from __future__ import annotations

from collections.abc import Callable

from antiphon_core.errors import AntiphonError
from antiphon_core.logs import get_logger
from antiphon_core.request_context import lower_priority

from antiphon_gateway.clients import Backends
from antiphon_gateway.domain import generation
from antiphon_gateway.realtime import inputs
from antiphon_gateway.realtime.commands import Summarize

log = get_logger(__name__)


async def summarize(
    command: Summarize, backends: Backends, report: Callable[[inputs.Input], None]
) -> None:
    """Runs one summary at batch priority; an empty text reports that there is none.

    To be run as a task of its own: it lowers the priority of its context.
    """
    lower_priority()
    request = generation.GenerateRequest(
        input=command.chat,
        model=command.model,
        sampling=generation.Sampling(temperature=0.0),
        stop=generation.Stop(max_tokens=command.max_tokens),
    )
    pieces: list[str] = []
    try:
        async with backends.llm.generate(request) as events:
            async for event in events:
                if isinstance(event, generation.Delta):
                    pieces.append(event.text)
                elif isinstance(event, generation.Finished) and event.error is not None:
                    raise event.error
    except AntiphonError as error:
        log.warning("summary_failed", reason=error.reason, message=error.message[:300])
        pieces.clear()
    report(inputs.Summarized(command.number, "".join(pieces)))
