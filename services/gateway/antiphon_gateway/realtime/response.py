"""Runs one reply: language model to text, text to voice, both as they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from antiphon_core.errors import AntiphonError, Internal
from antiphon_core.logs import get_logger
from msgspec.structs import replace

from antiphon_gateway.clients import Backends, GenerationStream, SpeechStream
from antiphon_gateway.domain import generation, speech
from antiphon_gateway.realtime import inputs
from antiphon_gateway.realtime.commands import ResponsePlan
from antiphon_gateway.realtime.errors import failure_of, failure_of_reason
from antiphon_gateway.realtime.first_clause import FirstClause

log = get_logger(__name__)

FIRST_CLAUSE_WORDS = 6
_CUT = (generation.FinishReason.LENGTH, generation.FinishReason.CONTEXT)

Report = Callable[[inputs.Input], None]
Credit = Callable[[str, float], Awaitable[None]]


async def run_response(
    plan: ResponsePlan,
    backends: Backends,
    report: Report,
    audio_credit: Credit,
    released: asyncio.Event,
) -> None:
    """Runs a reply to its end and reports everything it yields; cancelling it frees both backends.

    Args:
        plan: what to run.
        backends: language model and voice.
        report: takes each result, in order; the last is ReplyEnded or ReplyFailed.
        audio_credit: waits until more audio of a lane may be queued, with a lead in seconds.
        released: set from the time on at which a held reply may go past its first audio.
    """
    response_id = plan.response_id
    try:
        async with backends.llm.generate(_request(plan)) as text:
            if plan.speech is None:
                await _read(response_id, text, report, None)
            else:
                await _speak(plan, plan.speech, text, backends, report, audio_credit, released)
    except* AntiphonError as group:
        report(_failure(response_id, _first(group)))
    except* Exception as group:
        log.exception("response_failed", response_id=response_id, exc_info=group)
        failure = failure_of_reason("INTERNAL", "the response failed; the gateway's log says why")
        report(inputs.ReplyFailed(response_id, failure))
    else:
        report(inputs.ReplyEnded(response_id))


async def _speak(
    plan: ResponsePlan,
    config: speech.SpeechConfig,
    text: GenerationStream,
    backends: Backends,
    report: Report,
    audio_credit: Credit,
    released: asyncio.Event,
) -> None:
    resolved = replace(config, voice=backends.vocoder.resolve_voice(config.voice))
    async with contextlib.AsyncExitStack() as stack:

        async def open_stream() -> SpeechStream:
            stream = await stack.enter_async_context(backends.vocoder.stream(resolved))
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            tasks.create_task(_play(plan, stream, report, audio_credit, released))
            return stream

        await _read(plan.response_id, text, report, _Voice(open_stream))


class _Voice:
    """Speaks a reply's text.

    The stream is opened with the first text: a vocoder ends one that is given nothing for long, and
    a reply may write calls for as long as it likes.
    """

    def __init__(self, open_stream: Callable[[], Awaitable[SpeechStream]]) -> None:
        self._open_stream = open_stream
        self._stream: SpeechStream | None = None
        self._first_clause = FirstClause(FIRST_CLAUSE_WORDS)

    async def say(self, text: str) -> None:
        """Sends text, and has the first clause spoken at once."""
        if self._stream is None:
            self._stream = await self._open_stream()
        end = self._first_clause.cut(text)
        if end is None:
            await self._stream.send_text(text)
            return
        if end:
            await self._stream.send_text(text[:end])
        await self._stream.flush()
        await self._stream.send_text(text[end:])

    async def end(self) -> None:
        """No text follows."""
        if self._stream is not None:
            await self._stream.end_input()


async def _read(
    response_id: str, text: GenerationStream, report: Report, voice: _Voice | None
) -> None:
    cut = False
    async for event in text:
        if isinstance(event, generation.Delta):
            _report_delta(response_id, event, report)
            if voice is not None and event.text:
                await voice.say(event.text)
        elif isinstance(event, generation.Accepted):
            report(inputs.PromptAccepted(response_id, event.prompt_tokens))
        elif isinstance(event, generation.Finished):
            if event.reason is generation.FinishReason.ERROR:
                raise event.error or Internal("the generation failed")
            cut = event.reason in _CUT
        else:
            report(inputs.TextEnded(response_id, cut, event.usage))
    if voice is not None:
        await voice.end()


def _request(plan: ResponsePlan) -> generation.GenerateRequest:
    return generation.GenerateRequest(
        input=plan.chat,
        model=plan.model,
        sampling=plan.sampling,
        stop=generation.Stop(max_tokens=plan.max_tokens),
    )


def _report_delta(response_id: str, delta: generation.Delta, report: Report) -> None:
    tokens = delta.token_count
    for call in delta.tool_calls:
        report(
            inputs.CallProduced(response_id, call.index, call.id, call.name, call.arguments, tokens)
        )
        tokens = 0
    if delta.text or tokens:
        report(inputs.TextProduced(response_id, delta.text, tokens))


async def _play(
    plan: ResponsePlan,
    stream: SpeechStream,
    report: Report,
    audio_credit: Credit,
    released: asyncio.Event,
) -> None:
    response_id = plan.response_id
    first = True
    async for event in stream:
        if isinstance(event, speech.AudioChunk):
            if not first:
                await released.wait()
            first = False
            await audio_credit(plan.lane, plan.audio_lead)
            report(inputs.AudioProduced(response_id, event.data, event.sample_count))
        elif isinstance(event, speech.SpeechMark):
            report(inputs.SpokenUpTo(response_id, event.input_offset, event.sample))


def _first(group: BaseExceptionGroup[AntiphonError]) -> AntiphonError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, AntiphonError)
    return error


def _failure(response_id: str, error: AntiphonError) -> inputs.ReplyFailed:
    limit = _number(error.metadata.get("limit", ""))
    observed = _number(error.metadata.get("observed", ""))
    return inputs.ReplyFailed(response_id, failure_of(error), limit, observed)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
