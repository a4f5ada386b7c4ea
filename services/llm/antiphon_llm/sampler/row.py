"""One request's draw settings in the form that the draw reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from antiphon_llm.messages import Sampling

from .penalties import TokenHistory
from .philox import NoiseKey, request_key


class SamplerRow:
    """Draw state of one request; lives as long as the request, across preemptions.

    Greedy is data: temperature 0 becomes temperature 1, top_k 1 and no noise.
    """

    def __init__(
        self,
        sampling: Sampling,
        *,
        choice: int,
        prompt_ids: Sequence[int],
        end_ids: Collection[int],
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

    def noise_key(self, position: int) -> NoiseKey:
        """What the noise of the token at this absolute position depends on."""
        return NoiseKey(self._key, position, self._choice)

    def adjusted(self, raw: np.ndarray) -> np.ndarray:
        """Penalties, bias, processors and temperature over raw fp32 logits (V).

        Returns ``raw`` itself where nothing applies, else a copy.
        """
        ends_barred = len(self._drawn) < self.sampling.min_tokens and len(self.end_ids) > 0
        touched = self._history is not None or len(self._bias_ids) > 0 or ends_barred
        if not touched:
            return raw if self.temperature == 1 else raw / self.temperature
        logits = raw.copy()
        if self._history is not None:
            self._history.apply(
                logits,
                repetition=self.sampling.repetition_penalty,
                frequency=self.sampling.frequency_penalty,
                presence=self.sampling.presence_penalty,
            )
        logits[self._bias_ids] += self._bias
        if ends_barred:
            logits[self.end_ids] = -np.inf
        logits /= self.temperature
        return logits

    def advance(self, token: int) -> None:
        """Takes note of a drawn token."""
        self._drawn.append(token)
        if self._history is not None:
            self._history.append(token)

    def rewind(self, outputs: int) -> None:
        """Forgets the tokens after the first ``outputs``: they were drawn and dropped."""
        while len(self._drawn) > outputs:
            token = self._drawn.pop()
            if self._history is not None:
                self._history.drop_last(token)
