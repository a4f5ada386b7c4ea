"""What an operator orders one live sequence to do: end, or answer."""

from __future__ import annotations

from collections.abc import Set

from antiphon_llm.messages import AnswerNow, Done, StopNow

from .live import LiveRequests


class Orders:
    """Arms the rules of a sequence's sampler. Refuses with the reason where nothing can happen.

    Args:
        end_ids: ids that end a text of the model.
    """

    def __init__(self, live: LiveRequests, end_ids: Set[int]) -> None:
        self._live = live
        self._end_ids = end_ids

    def stop(self, message: StopNow) -> Done:
        """The sequence's next token ends it, also where it ignores end tokens."""
        request = self._live.get(message.sequence)
        if request is None or request.sampler is None:
            return _gone(message)
        ends = self._end_ids or request.stop_ids
        if not ends:
            return _refused(message, "the model has no token that ends a text")
        if not request.timings.admitted:
            self._live.finish(request, "stop")
            return Done(message.request_id)
        end = min(ends)
        request.stop_ids |= {end}
        request.sampler.stopper.arm(end)
        return Done(message.request_id)

    def answer(self, message: AnswerNow) -> Done:
        """The sequence's open reasoning block is closed by force from its next token on."""
        request = self._live.get(message.sequence)
        if request is None or request.sampler is None:
            return _gone(message)
        thinking = request.sampler.thinking
        if thinking is None:
            return _refused(message, "the request does not reason")
        refusal = thinking.end_now()
        return _refused(message, refusal) if refusal else Done(message.request_id)


def _gone(message: StopNow | AnswerNow) -> Done:
    return _refused(message, "the request is not running")


def _refused(message: StopNow | AnswerNow, reason: str) -> Done:
    return Done(message.request_id, reason, "WRONG_STATE")
