"""Which tokens whisper may choose next: suppressed ones, and the grammar of timestamps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from antiphon_nn.config_reader import ConfigReader

from antiphon_vocoder.recognition.whisper.vocabulary import Vocabulary

_MULTILINGUAL_VOCABULARY = 51865
"""Tokens from which a vocabulary has those of languages and tasks that count."""
_INITIAL_SECOND = 50
"""Timestamps of the first second."""


@dataclass(frozen=True)
class TokenRules:
    """What generation_config.json and the vocabulary say.

    Attributes:
        vocabulary: tokens of the model.
        end, start, no_speech, no_timestamps, first_timestamp: special tokens; the timestamps
            follow the first one to the end of the vocabulary.
        suppressed: never chosen.
        suppressed_first: not chosen as the first token.
        initial_timestamps: so many timestamps after the first one may begin a text.
        is_multilingual: prompts name a language and a task.
        alignment_heads: (layer, head) whose attention follows the speech.
    """

    vocabulary: int
    end: int
    start: int
    no_speech: int
    no_timestamps: int
    first_timestamp: int
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    initial_timestamps: int
    is_multilingual: bool
    alignment_heads: tuple[tuple[int, int], ...]


def read_rules(
    directory: Path, vocabulary: Vocabulary, *, size: int, layers: int, heads: int
) -> TokenRules:
    """The rules of a checkpoint.

    Args:
        directory: has generation_config.json.
        vocabulary: its tokenizer.
        size: tokens of the model.
        layers, heads: of the decoder.

    Raises:
        OSError, ValueError: the file is missing or damaged, or disagrees with the tokenizer.
    """
    config = ConfigReader(
        json.loads((directory / "generation_config.json").read_text()), "generation_config"
    )
    said = config.integer("no_timestamps_token_id", vocabulary.no_timestamps, least=0)
    if said != vocabulary.no_timestamps:
        raise ValueError(
            f"generation_config: no_timestamps_token_id is {said}, "
            f"the tokenizer has {vocabulary.no_timestamps}"
        )
    # Where nothing is said, the heads of the upper half of the layers.
    default = [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]
    aligned = tuple((int(a), int(b)) for a, b in config.raw("alignment_heads", default))
    for layer, head in aligned:
        if not (0 <= layer < layers and 0 <= head < heads):
            raise ValueError(f"generation_config: alignment_heads has ({layer}, {head})")
    return TokenRules(
        vocabulary=size,
        end=vocabulary.end,
        start=vocabulary.start,
        no_speech=vocabulary.no_speech,
        no_timestamps=vocabulary.no_timestamps,
        first_timestamp=vocabulary.first_timestamp,
        suppressed=_tokens(config, "suppress_tokens", size),
        suppressed_first=_tokens(config, "begin_suppress_tokens", size),
        initial_timestamps=config.integer("max_initial_timestamp_index", _INITIAL_SECOND, least=0),
        is_multilingual=config.flag("is_multilingual", size >= _MULTILINGUAL_VOCABULARY),
        alignment_heads=aligned,
    )


@dataclass(frozen=True, slots=True)
class Allowed:
    """Tokens that one row may choose.

    Attributes:
        is_first: no token was chosen yet.
        lowest: ids below it are ruled out.
        times_from, times_to: of the timestamps those in [from, to) are allowed.
        weighs_times: a timestamp is due once all of them together are likelier than any text.
    """

    is_first: bool
    lowest: int
    times_from: int
    times_to: int
    weighs_times: bool

    COLUMNS: ClassVar[int] = 5

    @property
    def columns(self) -> tuple[int, ...]:
        """As LogitRules takes it."""
        times = (self.times_from, self.times_to)
        return (self.lowest, *times, int(self.is_first), int(self.weighs_times))


@dataclass(frozen=True, slots=True)
class Scores:
    """What may follow some tokens.

    Attributes:
        tokens: of each, the likeliest ones that follow it, descending.
        logprobs: of those.
        no_speech: of each, the chance of the token that says so, by logits without rules.
        rows: of each, log-probabilities (vocabulary) fp32 on the device, valid until the next step.
    """

    tokens: list[list[int]]
    logprobs: list[list[float]]
    no_speech: list[float]
    rows: Sequence[torch.Tensor] | torch.Tensor


ANYTHING = Allowed(False, 0, 0, 2**31 - 1, False)


def allowed_next(rules: TokenRules, tokens: Sequence[int], *, timestamps: bool) -> Allowed:
    """What may follow the tokens chosen so far.

    Timestamps come in pairs, except directly before the end, and never go back; a text begins
    with one. Without timestamps only suppression applies.
    """
    first, size = rules.first_timestamp, rules.vocabulary
    if not timestamps:
        return Allowed(not tokens, 0, first, size, False)
    if not tokens:
        return Allowed(True, first, first, min(size, first + rules.initial_timestamps + 1), True)
    last = max((token for token in tokens if token >= first), default=first - 1)
    if tokens[-1] < first:
        return Allowed(False, 0, last + 1, size, True)
    if len(tokens) == 1 or tokens[-2] >= first:
        return Allowed(False, 0, first, first, True)
    return Allowed(False, rules.end, last, size, True)


class LogitRules:
    """Applies the rules to rows of logits.

    Args:
        rules: of the model.
        device: of the logits.
    """

    def __init__(self, rules: TokenRules, device: torch.device) -> None:
        self._rules = rules
        self._device = device
        ids = torch.arange(rules.vocabulary, device=device)
        self._ids = ids
        self._suppressed = torch.isin(ids, torch.tensor(rules.suppressed, device=device))
        self._first = torch.isin(ids, torch.tensor(rules.suppressed_first, device=device))

    def __call__(
        self, logits: torch.Tensor, allowed: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Applies what is allowed.

        Args:
            logits: (N, vocabulary) fp32.
            allowed: (N, Allowed.COLUMNS) integers.

        Returns:
            Chances (N) of the token that says that nobody speaks, and natural log-probabilities
            (N, vocabulary), -inf for tokens that are ruled out.
        """
        silent = logits.softmax(dim=1)[:, self._rules.no_speech]
        lowest, low, high, is_first, weighs = allowed.t()[:, :, None]
        ids, first_time = self._ids, self._rules.first_timestamp
        out = (ids < lowest) | (ids >= high) | ((ids >= first_time) & (ids < low))
        out |= self._suppressed | (self._first & (is_first > 0))
        out |= (ids == self._rules.no_timestamps) & (weighs > 0)
        ruled = logits.masked_fill(out, -torch.inf)
        text, times = ruled[:, :first_time], ruled[:, first_time:]
        due = times.logsumexp(dim=1) > text.amax(dim=1)
        text.masked_fill_(due[:, None] & (weighs > 0), -torch.inf)
        return silent, ruled.log_softmax(dim=1)

    def scores(self, logits: torch.Tensor, allowed: Sequence[Allowed], top: int) -> Scores:
        """The ``top`` likeliest tokens by logits (N, vocabulary) fp32."""
        columns = torch.tensor([one.columns for one in allowed], device=self._device)
        silent, logprobs = self(logits, columns)
        likeliest = logprobs.topk(top, dim=1)
        return Scores(
            likeliest.indices.tolist(), likeliest.values.tolist(), silent.tolist(), logprobs
        )


def _tokens(config: ConfigReader, key: str, size: int) -> tuple[int, ...]:
    tokens = tuple(int(token) for token in config.raw(key, ()))
    wrong = [token for token in tokens if not 0 <= token < size]
    if wrong:
        raise ValueError(f"generation_config: {key} has {wrong[0]}, the model has {size} tokens")
    return tokens
