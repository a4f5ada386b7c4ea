"""Wire models of POST /v1/completions, and the byte templates of its stream."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon_gateway.domain import generation
from antiphon_gateway.openai.chat_output import encode, sse_frame
from antiphon_gateway.openai.common import (
    Choices,
    CountOrZero,
    FinishReasonName,
    Logprobs,
    StreamOptions,
    Timing,
    TokenId,
    Usage,
)
from antiphon_gateway.openai.generation import GenerationFields

MAX_PROMPTS = 128

PromptTokens = Annotated[list[TokenId], Meta(min_length=1)]
PromptItem = str | TokenId | PromptTokens


class CompletionRequest(GenerationFields, kw_only=True):
    """POST /v1/completions; null is the same as absent."""

    prompt: str | Annotated[list[PromptItem], Meta(min_length=1)]
    best_of: Choices | None = None
    echo: bool | None = None
    logprobs: Logprobs | None = None
    max_tokens: CountOrZero | None = None
    n: Choices | None = None
    prompt_logprobs: Logprobs | None = None
    return_timing: bool | None = None
    stream_options: StreamOptions | None = None


class CompletionLogprobs(Struct):
    """Log-probabilities as parallel arrays, one item a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(Struct):
    """A prompt token with its log-probability."""

    token: str
    token_id: int
    logprob: float
    rank: int
    """1 for the most probable token."""
    top_logprobs: dict[str, float]


class CompletionChoice(Struct):
    """One continuation, or the part of it that a chunk adds."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReasonName | None = None
    prompt_logprobs: list[PromptLogprob | None] | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    """The whole response, or one chunk of it."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    token_count: int | UnsetType = UNSET
    timing: Timing | UnsetType = UNSET


class LogprobText:
    """Turns token bytes into strings and counts character offsets over a whole choice.

    A token that ends inside a character has no text of its own; it is written as ``bytes:`` with
    the hexadecimal escapes, and the character counts where it is complete.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def convert(
        self, items: Sequence[generation.TokenLogprob], *, first_is_unknown: bool = False
    ) -> CompletionLogprobs:
        """The arrays of the next tokens.

        Args:
            items: tokens in order.
            first_is_unknown: the first token begins the context and has no probability.
        """
        result = CompletionLogprobs([], [], [], [])
        for index, item in enumerate(items):
            unknown = first_is_unknown and index == 0
            result.tokens.append(token_text(item.token))
            result.token_logprobs.append(None if unknown else item.logprob)
            result.top_logprobs.append(None if unknown else _alternatives(item))
            result.text_offset.append(self._offset)
            self._offset += len(self._decoder.decode(item.token))
        return result


def token_text(token: bytes) -> str:
    """A token as a string that is unique to its bytes."""
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def prompt_logprobs_of(
    items: Sequence[generation.TokenLogprob],
) -> list[PromptLogprob | None]:
    """One item a prompt token; the first has no probability and is null."""
    return [
        None
        if index == 0
        else PromptLogprob(
            token_text(item.token), item.token_id, item.logprob, item.rank, _alternatives(item)
        )
        for index, item in enumerate(items)
    ]


class CompletionFrames:
    """Builds the events of one stream: byte halves for text, the generic encoder for the rest.

    Args:
        completion_id: id of every chunk.
        created: seconds since the epoch.
        model: model as requested.
        fingerprint: the engine's.
        choice_count: choices of all prompts.
        include_usage: whether chunks have ``usage: null``.
        include_token_count: whether chunks say how many tokens they cover.
    """

    def __init__(
        self,
        *,
        completion_id: str,
        created: int,
        model: str,
        fingerprint: str,
        choice_count: int,
        include_usage: bool,
        include_token_count: bool,
    ) -> None:
        self._id = completion_id
        self._created = created
        self._model = model
        self._fingerprint = fingerprint
        self._usage: UnsetType | None = None if include_usage else UNSET
        self._counts = include_token_count
        self.logprob_texts = [LogprobText() for _ in range(choice_count)]
        self._halves = [self._split(choice) for choice in range(choice_count)]

    def delta(self, event: generation.Delta) -> bytes:
        """The chunk of new output; empty where it has nothing to show."""
        if event.is_plain:
            return self.text(event.choice, event.text, event.token_count) if event.text else b""
        if not event.text and not event.logprobs:
            return b""
        logprobs = self.logprob_texts[event.choice].convert(event.logprobs)
        return self.frame(
            CompletionChoice(event.text, event.choice, logprobs), token_count=event.token_count
        )

    def text(self, choice: int, text: str, token_count: int) -> bytes:
        """The chunk of visible text."""
        before, after = self._halves[choice]
        if self._counts:
            after = after[:-3] + b',"token_count":%d}\n\n' % token_count
        return before + encode(text) + after

    def finish(self, choice: int, reason: FinishReasonName) -> bytes:
        """The last chunk of one choice."""
        return self.frame(CompletionChoice("", choice, finish_reason=reason))

    def usage(self, usage: Usage | None, timing: Timing | None) -> bytes:
        """The last chunk of a stream that reports usage or timing; it has no choices."""
        return sse_frame(
            Completion(
                id=self._id,
                created=self._created,
                model=self._model,
                system_fingerprint=self._fingerprint,
                choices=[],
                usage=UNSET if usage is None else usage,
                timing=UNSET if timing is None else timing,
            )
        )

    def frame(self, choice: CompletionChoice, token_count: int = 0) -> bytes:
        """A chunk by the generic way."""
        return sse_frame(
            Completion(
                id=self._id,
                created=self._created,
                model=self._model,
                system_fingerprint=self._fingerprint,
                choices=[choice],
                usage=self._usage,
                token_count=token_count if self._counts else UNSET,
            )
        )

    def _split(self, choice: int) -> tuple[bytes, bytes]:
        counts, self._counts = self._counts, False
        before, mark, after = self.frame(CompletionChoice("\x00", choice)).partition(encode("\x00"))
        self._counts = counts
        assert mark
        return before, after


def _alternatives(item: generation.TokenLogprob) -> dict[str, float]:
    found = {token_text(other.token): other.logprob for other in item.alternatives}
    found.setdefault(token_text(item.token), item.logprob)
    return found
