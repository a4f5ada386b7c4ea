"""One request from submit to its terminal.

The engine client calls in on the event loop for every message that concerns the request; the
reader takes what has gathered with ``collect`` or iterates over ``events``. Exactly one end is
reached: completed, an error, or cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from antiphon_core.errors import AntiphonError, Cancelled, Internal

from antiphon_llm.front.choice import Choice, prompt_token_logprobs
from antiphon_llm.front.engine_errors import deadline_error, error_of
from antiphon_llm.front.events import Accepted, ChoiceFinished, Completed, Event, Timings, Usage
from antiphon_llm.front.output import PLAIN, OutputPlan
from antiphon_llm.front.requests import GenerationRequest, RequestScope
from antiphon_llm.front.tokenizer import Tokenizer
from antiphon_llm.messages import Finish, Sampling, Submit, TopLogprobs


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request: what the engine gets and what the reader hears first."""

    request: GenerationRequest
    scope: RequestScope
    model: str
    fingerprint: str
    prompt_ids: list[int]
    sampling: Sampling
    output: OutputPlan = PLAIN
    notes: Sequence[str] = ()
    adapter: str = ""
    """Name of the adapter that it goes through."""

    def submit(self, name: str, choice: int) -> Submit:
        """The engine's message for one choice; the prompt is scored for the first alone."""
        sampling = self.sampling
        if choice:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=-1)
        return Submit(
            request_id=name,
            prompt_ids=self.prompt_ids,
            sampling=sampling,
            choice=choice,
            deadline=self.scope.deadline,
            interactive=self.scope.interactive,
            tenant=self.scope.tenant,
            trace=self.scope.traceparent,
            adapter=self.adapter,
            cache=self.request.cache,
        )


class SequenceHost(Protocol):
    """What a generation needs of the engine client."""

    def open(self, generation: Generation) -> None:
        """Submits one sequence per choice."""
        ...

    def end(self, generation: Generation, choices: Sequence[int]) -> None:
        """Cancels these choices in the engine; ended ones are ignored."""
        ...


class Generation:
    """State of one request.

    Args:
        prepared: the request.
        tokenizer: of the model.
        host: the engine client.
        on_end: called once, when the last choice has ended, failed or been cancelled.
        wake: called when there is something to collect; at most once per engine step.
    """

    def __init__(
        self,
        prepared: Prepared,
        tokenizer: Tokenizer,
        host: SequenceHost,
        *,
        on_end: Callable[[Generation], None],
        wake: Callable[[], None] | None = None,
    ) -> None:
        request = prepared.request
        self.prepared = prepared
        self.choices = [
            Choice(
                index,
                tokenizer,
                request.stop,
                request.output,
                prepared.sampling.reasoning,
                prepared.output,
            )
            for index in range(request.choice_count)
        ]
        self.usage = Usage(prompt_tokens=len(prepared.prompt_ids))
        self.timings = Timings()
        self.arrived_at = time.time()
        self.started = time.monotonic()
        self.admitted_after: float | None = None
        self.first_token_after: float | None = None
        self.ended_after: float | None = None
        """All three in seconds from arrival."""
        self.error: AntiphonError | None = None
        self.outcome = ""
        """stop, length, context, cancelled, or the reason of the error; empty while it runs."""
        self._tokenizer = tokenizer
        self._host = host
        self._on_end = on_end
        self._ready = asyncio.Event()
        self._wake = wake or self._ready.set
        self._admitted: set[int] = set()
        self._accepted = False
        self._accepts_late = False
        """Whether it failed after its first text and before the reader came for it."""
        self._completed = False
        self._prompt_scores: list[TopLogprobs | None] | None = None
        self._failures: dict[int, AntiphonError] = {}
        self._told: set[int] = set()

    @property
    def live(self) -> bool:
        """Whether the engine still works for it."""
        return self.ended_after is None

    def start(self) -> None:
        """Submits all choices.

        Raises:
            AntiphonError: the engine takes no work now.
        """
        self._host.open(self)

    # Called by the engine client

    def on_admitted(self, choice: int, cached_tokens: int) -> None:
        """The choice got a row; so many tokens of its prompt were cached."""
        self._admitted.add(choice)
        if choice == 0:
            # The prompt's own; what the others find is what this choice has just computed.
            self.usage.cached_tokens = cached_tokens
        if self.admitted_after is None:
            self.admitted_after = time.monotonic() - self.started

    def on_prompt_logprobs(self, scores: list[TopLogprobs | None]) -> None:
        """The prompt's log-probabilities are complete."""
        if len(scores) == len(self.prepared.prompt_ids):
            self._prompt_scores = scores
            return
        self.fail(
            Internal(
                f"the engine scored {len(scores)} of {len(self.prepared.prompt_ids)} prompt tokens"
            )
        )

    def on_token(
        self, choice: int, token_id: int, logprob: float, top: TopLogprobs | None, ends: bool
    ) -> None:
        """A token was drawn; ``ends`` marks the end token of a choice that stops with it."""
        current = self.choices[choice]
        if current.reason:
            return
        if self.first_token_after is None:
            self.first_token_after = time.monotonic() - self.started
        self.usage.output_tokens += 1
        if ends:
            current.count_stop_token(token_id)
            return
        try:
            stopped = current.push(token_id, logprob, top)
        except AntiphonError as error:
            self.fail(error)
            return
        if stopped:
            self._count_reasoning(current.reasoning_tokens())
            current.finish("stop")
            self._host.end(self, (choice,))
            self._end_if_over()

    def on_finish(self, choice: int, finish: Finish) -> None:
        """The engine's terminal of one choice."""
        current = self.choices[choice]
        if current.reason:
            return
        if choice == 0:
            self.timings.queued = finish.queue_seconds
            self.timings.prefill = finish.prefill_seconds
        self.timings.decode = max(self.timings.decode, finish.decode_seconds)
        self._count_reasoning(finish.reasoning_tokens)
        self.usage.accepted_drafts += finish.accepted_drafts
        self.usage.rejected_drafts += finish.rejected_drafts
        if finish.reason == "deadline":
            self.fail(deadline_error())
            return
        if finish.reason == "error":
            asked = self.prepared.request.constraint
            bound = "chat.tools" if asked is None else f"constraint.{asked.kind}"
            failure = error_of(finish, constraint=bound)
            self._failures[choice] = failure
            committed = self._accepted or self._may_accept()
            if not committed or len(self._failures) == len(self.choices):
                self.fail(failure)
                return
        current.finish(finish.reason)
        self._end_if_over()

    def fail(self, error: AntiphonError) -> None:
        """Ends the whole request with an error; text that has come is still delivered."""
        if not self.live:
            return
        self._accepts_late = self._may_accept() and self.usage.output_tokens > 0
        self.error = error
        self._close(error.reason.lower())

    def wake(self) -> None:
        """Tells the reader; the engine client calls it once per message."""
        self._wake()

    # Called by the reader

    def collect(self) -> list[Event]:
        """Everything new, in order. After it ``done`` or ``error`` tells whether more can come."""
        events: list[Event] = []
        if not self._accepted:
            if not self._may_accept():
                return events
            self._accepted = True
            events.append(self._accept())
        for choice in self.choices:
            delta = choice.take()
            if delta is not None:
                events.append(delta)
            if choice.reason and choice.index not in self._told and self.error is None:
                self._told.add(choice.index)
                events.append(self._finished(choice))
        if not self.live and self.error is None and not self._completed:
            self._completed = True
            spoken = [choice.audio_tokens for choice in self.choices]
            if None not in spoken:
                self.usage.audio_tokens = sum(filter(None, spoken))
            events.append(Completed(self.usage, self.timings, self.prepared.sampling))
        return events

    @property
    def done(self) -> bool:
        """Whether everything was collected."""
        return self._completed or (self.error is not None)

    async def events(self) -> AsyncGenerator[Event, None]:
        """All events; closing the iterator or cancelling the task cancels the request.

        Raises:
            AntiphonError: the request failed; nothing follows.
        """
        try:
            while not self.done:
                await self._ready.wait()
                self._ready.clear()
                for event in self.collect():
                    yield event
            if self.error is not None:
                raise self.error
        finally:
            self.cancel()

    def cancel(self) -> None:
        """The reader went away: frees everything in the engine. Idempotent, never waits."""
        if self.live:
            self.error = Cancelled("the caller ended the request")
            self._close("cancelled")

    # Inside

    def _count_reasoning(self, tokens: int) -> None:
        """Adds a choice's reasoning tokens; -1 where it had no block."""
        if tokens >= 0:
            self.usage.reasoning_tokens = (self.usage.reasoning_tokens or 0) + tokens

    def _may_accept(self) -> bool:
        """Whether no refusal of a choice can come any more.

        The engine says when a choice gets a row or is refused, not when it queues. It reads its
        inbox before each step, so a choice that is silent when a sibling has drawn its second
        token waits in the queue.
        """
        if self.error is not None:
            return self._accepts_late
        if self.prepared.sampling.prompt_logprobs >= 0 and self._prompt_scores is None:
            return any(choice.reason for choice in self.choices)
        answered = (
            choice.index in self._admitted or choice.reason != "" for choice in self.choices
        )
        return all(answered) or any(choice.output_tokens > 1 for choice in self.choices)

    def _accept(self) -> Accepted:
        prepared = self.prepared
        scores = self._prompt_scores
        return Accepted(
            request_id=prepared.scope.request_id,
            model=prepared.model,
            fingerprint=prepared.fingerprint,
            prompt_tokens=len(prepared.prompt_ids),
            notes=prepared.notes,
            prompt_logprobs=()
            if scores is None
            else prompt_token_logprobs(self._tokenizer, prepared.prompt_ids, scores),
        )

    def _finished(self, choice: Choice) -> ChoiceFinished:
        return ChoiceFinished(
            choice=choice.index,
            reason=choice.reason,
            stop_string=choice.stop_string,
            stop_token_id=choice.stop_token_id,
            error=self._failures.get(choice.index),
        )

    def _end_if_over(self) -> None:
        if all(choice.reason for choice in self.choices):
            self._close(self.choices[0].reason)

    def _close(self, outcome: str) -> None:
        self.ended_after = time.monotonic() - self.started
        self.outcome = outcome
        self._complete_timings()
        self._host.end(self, range(len(self.choices)))
        self._on_end(self)

    def _complete_timings(self) -> None:
        """A request that ends before the engine's own terminal takes the front's clock."""
        if self.timings.decode or self.first_token_after is None or self.ended_after is None:
            return
        admitted = min(self.admitted_after or 0.0, self.first_token_after)
        self.timings.queued = admitted
        self.timings.prefill = self.first_token_after - admitted
        self.timings.decode = self.ended_after - self.first_token_after
