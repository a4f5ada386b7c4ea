"""Choosing the tokens of one text: a beam search, or draws at a temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from antiphon_kernels.philox import philox_blocks
from numpy.typing import NDArray

from antiphon_vocoder.recognition.whisper.backend import SAMPLES_WHEN_HOT, Attempt
from antiphon_vocoder.recognition.whisper_torch.rules import Allowed, TokenRules, allowed_next

_KEY = 20
"""Noise depends on it, the sample and the position: equal audio gives equal text."""
_TEXT_DRAW = 0
"""What the noise is for."""


@dataclass(frozen=True)
class Text:
    """A text so far, its end not included.

    Attributes:
        tokens: chosen.
        logprob: natural log-probability of all of them, and of the end where there is one.
        has_end: the end was chosen.
    """

    tokens: list[int]
    logprob: float
    has_end: bool = False

    @property
    def mean(self) -> float:
        """Log-probability of a token, the end included where it was chosen."""
        return self.logprob / max(1, len(self.tokens) + self.has_end)

    def extended(self, token: int, logprob: float, end: int) -> Text:
        """With one token more."""
        if token == end:
            return Text(self.tokens, self.logprob + logprob, True)
        return Text([*self.tokens, token], self.logprob + logprob)


@dataclass(frozen=True)
class Choices:
    """Log-probabilities of one row.

    Attributes:
        top: (token, log-probability) of the likeliest, descending.
        logprobs: (vocabulary) fp32 where the search draws, else None.
    """

    top: list[tuple[int, float]]
    logprobs: NDArray[np.float32] | None


class Search(Protocol):
    """The texts of one decoding. A row of the decoder belongs to each text that goes on.

    Attributes:
        rows: numbers of those rows, below ``width``; at the start only row 0, for the prompt.
        texts: the text of each.
        copies: (source, target) rows to copy before the next step.
        width: rows that the search may need.
        top: likeliest tokens that ``advance`` wants of each row.
        draws: whether it wants whole distributions.
    """

    rows: list[int]
    texts: list[Text]
    copies: list[tuple[int, int]]
    width: int
    top: int
    draws: bool

    def advance(self, choices: Sequence[Choices]) -> None:
        """Takes the choices of each row; without rows afterwards the search is over."""
        ...

    def best(self) -> Text:
        """The likeliest text, once the search is over."""
        ...


def open_search(rules: TokenRules, attempt: Attempt) -> Search:
    """The search that an attempt asks for."""
    room = attempt.max_length - len(attempt.prompt)
    if attempt.temperature > 0:
        return Drawing(rules, attempt.temperature, SAMPLES_WHEN_HOT, room)
    return BeamSearch(rules, attempt.beams, room)


def allowed_rows(rules: TokenRules, search: Search, *, timestamps: bool) -> list[Allowed]:
    """What each row of a search may choose next."""
    return [allowed_next(rules, text.tokens, timestamps=timestamps) for text in search.texts]


class BeamSearch:
    """Keeps the ``width`` likeliest texts; over once so many have ended. Greedy is width 1.

    Args:
        rules: the end's token.
        width: beams.
        room: tokens that fit.
    """

    draws = False

    def __init__(self, rules: TokenRules, width: int, room: int) -> None:
        self.width = width
        # Of so many candidates at most ``width`` end, and the others go on.
        self.top = 2 * width
        self.rows = [0]
        self.texts = [Text([], 0.0)]
        self.copies: list[tuple[int, int]] = []
        self._end = rules.end
        self._room = room
        self._ended: list[Text] = []

    def advance(self, choices: Sequence[Choices]) -> None:
        """See Search."""
        candidates = [
            (text.logprob + logprob, row, token, logprob)
            for row, text, choice in zip(self.rows, self.texts, choices, strict=True)
            for token, logprob in choice.top[: self.top]
            if logprob > -np.inf
        ]
        # Sorting is stable: among equals the lower beam and its likelier token come first.
        candidates.sort(key=lambda item: -item[0])
        texts = dict(zip(self.rows, self.texts, strict=True))
        going: list[tuple[int, Text]] = []
        for place, (_, row, token, logprob) in enumerate(candidates[: self.top]):
            text = texts[row].extended(token, logprob, self._end)
            if not text.has_end:
                going.append((row, text))
            elif place < self.width:
                self._ended.append(text)
        going = going[: self.width]
        if going and len(going[0][1].tokens) >= self._room:
            self._ended += [text for _, text in going]
            going = []
        if len(self._ended) >= self.width:
            going = []
        self.rows = list(range(len(going)))
        self.texts = [text for _, text in going]
        self.copies = [(row, target) for target, (row, _) in enumerate(going) if row != target]

    def best(self) -> Text:
        """See Search."""
        return max(self._ended, key=lambda text: text.mean, default=Text([], 0.0))


class Drawing:
    """Draws ``width`` texts, each with noise of its own.

    Args:
        rules: the end's token.
        temperature: above 0.
        width: texts.
        room: tokens that fit.
    """

    draws = True
    top = 1

    def __init__(self, rules: TokenRules, temperature: float, width: int, room: int) -> None:
        self.width = width
        self.rows = [0]
        self.texts = [Text([], 0.0)]
        self.copies: list[tuple[int, int]] = []
        self._end = rules.end
        self._temperature = temperature
        self._room = room
        self._ended: list[Text] = []
        self._started = False

    def advance(self, choices: Sequence[Choices]) -> None:
        """See Search."""
        rows, texts, self.copies = self.rows, self.texts, []
        if not self._started:
            # All texts begin with the same prompt.
            self._started = True
            rows = list(range(self.width))
            texts, choices = texts * self.width, [*choices] * self.width
            self.copies = [(0, row) for row in rows[1:]]
        self.rows, self.texts = [], []
        for row, text, choice in zip(rows, texts, choices, strict=True):
            assert choice.logprobs is not None
            token = self._drawn(choice.logprobs, len(text.tokens), row)
            text = text.extended(token, float(choice.logprobs[token]), self._end)
            if text.has_end or len(text.tokens) >= self._room:
                self._ended.append(text)
            else:
                self.rows.append(row)
                self.texts.append(text)

    def best(self) -> Text:
        """See Search."""
        return max(self._ended, key=lambda text: text.mean)

    def _drawn(self, logprobs: NDArray[np.float32], position: int, row: int) -> int:
        scaled = logprobs.astype(np.float64) / self._temperature
        chances = np.exp(scaled - scaled.max()).cumsum()
        word = int(philox_blocks(_KEY, 1, (position, row, _TEXT_DRAW))[0, 0])
        return int(np.searchsorted(chances, (word + 0.5) * 2.0**-32 * chances[-1], side="right"))
