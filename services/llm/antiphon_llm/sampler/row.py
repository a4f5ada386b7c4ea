"""One request's draw settings and state in the form that the draw reads."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Sequence

import numpy as np

from antiphon_llm.messages import Sampling
from antiphon_llm.request_key import request_key

from .penalties import TokenHistory
from .philox import NoiseKey
from .processors import ForcedStop, Processor, RowFacts, Thinking, place_of, stock_processors
from .window import Window


class SamplerRow:
    """Draw state of one request; lives as long as the request, across preemptions.

    Greedy is data: temperature 0 becomes temperature 1, top_k 1 and no noise.

    Args:
        sampling: the request's settings.
        choice: number among the request's choices; each has its own noise.
        prompt_ids: ids of the prompt.
        end_ids: ids that end the output.
        vocabulary: head width V.
        unasked_ids: ids of modalities that the request does not ask for; never drawn.
    """

    def __init__(
        self,
        sampling: Sampling,
        *,
        choice: int,
        prompt_ids: Sequence[int],
        end_ids: Collection[int],
        vocabulary: int,
        unasked_ids: Sequence[int] = (),
    ) -> None:
        greedy = sampling.temperature == 0
        self.temperature = np.float32(1.0 if greedy else sampling.temperature)
        self.top_k = 1 if greedy else sampling.top_k
        self.top_p = sampling.top_p
        self.min_p = sampling.min_p
        self.noisy = not greedy
        self.logprobs = sampling.logprobs
        self._key = request_key(sampling.seed)
        self._choice = choice
        self.sampling = sampling
        self.vocabulary = vocabulary
        self._drawn: list[int] = []
        self._bias_ids = np.array(sorted(sampling.logit_bias), dtype=np.int64)
        self._bias = np.array(
            [sampling.logit_bias[int(token)] for token in self._bias_ids], dtype=np.float32
        )
        self.end_ids = np.array(sorted(end_ids), dtype=np.int64)
        penalised = (
            sampling.repetition_penalty != 1.0
            or sampling.frequency_penalty != 0.0
            or sampling.presence_penalty != 0.0
        )
        self._history = TokenHistory(prompt_ids) if penalised else None
        self._processors = stock_processors(
            RowFacts(
                sampling, prompt_ids, self.end_ids.tolist(), vocabulary, unasked_ids, self._drawn
            )
        )

    def add(self, processor: Processor) -> None:
        """Takes a processor that is made elsewhere, at its name's place in the registry."""
        insort(self._processors, processor, key=lambda item: place_of(item.name))

    @property
    def constrained(self) -> bool:
        """Whether the next window may bar or force anything, whatever is drawn until then."""
        return any(processor.active for processor in self._processors)

    @property
    def untouched(self) -> bool:
        """Whether the next draw is the largest raw logit, whatever it is drawn behind."""
        adjusted = self._history is not None or len(self._bias_ids) or self.constrained
        return not (self.noisy or adjusted)

    @property
    def processors(self) -> Sequence[Processor]:
        """The rules of this request, in the order in which they apply."""
        return self._processors

    @property
    def thinking(self) -> Thinking | None:
        """What follows the request's reasoning; None where the model has no markers."""
        return next((item for item in self._processors if isinstance(item, Thinking)), None)

    def reasoning_tokens(self, outputs: int) -> int:
        """Reasoning tokens among the first ``outputs``; -1 where there was no block."""
        thinking = self.thinking
        return -1 if thinking is None else thinking.tokens(outputs)

    @property
    def stopper(self) -> ForcedStop:
        """What an operator's stop arms."""
        return next(item for item in self._processors if isinstance(item, ForcedStop))

    def window(self, drafts: Sequence[int]) -> Window:
        """The rules for positions 0 to ``len(drafts)`` given all drawn tokens and the drafts.

        Drafts end at the first -1: what lies behind it cannot be reached and is left free.
        """
        window = Window(len(drafts) + 1, self.vocabulary)
        reachable = drafts[: drafts.index(-1)] if -1 in drafts else drafts
        for processor in self._processors:
            if processor.active:
                processor.fill(window, reachable)
        return window

    def noise_key(self, position: int) -> NoiseKey:
        """What the noise of the token at this absolute position depends on."""
        return NoiseKey(self._key, position, self._choice)

    def adjusted(
        self,
        raw: np.ndarray,
        *,
        ahead: Sequence[int] = (),
        window: Window | None = None,
    ) -> np.ndarray:
        """Penalties, bias, processors and temperature over raw fp32 logits (V).

        Returns ``raw`` itself where nothing applies, else a copy.

        Args:
            raw: of the position behind the drawn tokens and ``ahead``.
            ahead: the drafts before the position.
            window: rules of the position, which is its place ``len(ahead)``.
        """
        barred = None if window is None else window.barred(len(ahead))
        forced = -1 if window is None else int(window.forced[len(ahead)])
        if forced >= 0:
            logits = np.full_like(raw, -np.inf)
            logits[forced] = 0.0
            return logits
        if self._history is None and not len(self._bias_ids) and barred is None:
            return raw if self.temperature == 1 else raw / self.temperature
        logits = raw.copy()
        if self._history is not None:
            self._penalise(logits, self._history, ahead)
        logits[self._bias_ids] += self._bias
        if barred is not None:
            logits[barred] = -np.inf
        logits /= self.temperature
        return logits

    def advance(self, token: int) -> None:
        """Takes note of a drawn token.

        Raises:
            TokenRefused: a processor's state does not allow it.
        """
        for processor in self._processors:
            processor.advance(token)
        self._drawn.append(token)
        if self._history is not None:
            self._history.append(token)

    def rewind(self, outputs: int) -> None:
        """Forgets the tokens after the first ``outputs``: they were drawn and dropped."""
        if len(self._drawn) <= outputs:
            return
        while len(self._drawn) > outputs:
            token = self._drawn.pop()
            if self._history is not None:
                self._history.drop_last(token)
        for processor in self._processors:
            processor.rewind(outputs)

    def _penalise(self, logits: np.ndarray, history: TokenHistory, ahead: Sequence[int]) -> None:
        """In place; the drafts count as if they had been drawn."""
        for token in ahead:
            history.append(token)
        history.apply(
            logits,
            repetition=self.sampling.repetition_penalty,
            frequency=self.sampling.frequency_penalty,
            presence=self.sampling.presence_penalty,
        )
        for token in reversed(ahead):
            history.drop_last(token)
