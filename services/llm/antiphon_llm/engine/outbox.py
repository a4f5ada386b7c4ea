"""Collects what a step has to tell the front, as the columns of one message."""

from __future__ import annotations

from antiphon_llm.messages import Finish, StepOutputs, TopLogprobs
from antiphon_llm.sampler.draw import Draw


class Outbox:
    """Columns of the next StepOutputs; ``flush`` hands them over and starts anew."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._request_ids: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._top: list[TopLogprobs | None] = []
        self._admitted: list[str] = []
        self._cached: dict[str, int] = {}
        self._finished: list[Finish] = []
        self._prompt_logprobs: dict[str, list[TopLogprobs | None]] = {}
        self._scored = False

    def admitted(self, request_id: str, cached: int) -> None:
        """The request got a row for the first time; so many prompt tokens were cached."""
        self._admitted.append(request_id)
        if cached:
            self._cached[request_id] = cached

    def token(self, request_id: str, draw: Draw) -> None:
        """One drawn token."""
        self._request_ids.append(request_id)
        self._token_ids.append(draw.token)
        self._logprobs.append(draw.logprob)
        self._top.append(draw.top)
        self._scored = self._scored or draw.top is not None

    def prompt_logprobs(self, request_id: str, scored: list[TopLogprobs | None]) -> None:
        """The complete log-probabilities of a prompt."""
        self._prompt_logprobs[request_id] = scored

    def finished(self, finish: Finish) -> None:
        """The terminal of a request, after all its tokens."""
        self._finished.append(finish)

    def flush(self) -> StepOutputs | None:
        """The message, or None when there is nothing to say."""
        if not (self._request_ids or self._admitted or self._finished or self._prompt_logprobs):
            return None
        message = StepOutputs(
            request_ids=self._request_ids,
            token_ids=self._token_ids,
            logprobs=self._logprobs if self._scored else [],
            top_logprobs=self._top if self._scored else [],
            admitted=self._admitted,
            finished=self._finished,
            prompt_logprobs=self._prompt_logprobs,
            cached=self._cached,
        )
        self._start()
        return message
