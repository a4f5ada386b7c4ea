"""Wire models of chat completion responses, and the byte templates of their stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon_gateway.domain import generation
from antiphon_gateway.openai.common import FinishReasonName, Timing, Usage
from antiphon_gateway.openai.errors import ErrorBody

encode = msgspec.json.Encoder().encode


class TopLogprob(Struct):
    """An alternative at one position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    """A token with its log-probability and alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(Struct):
    """Log-probabilities of a choice's content."""

    content: list[TokenLogprob]
    refusal: None = None


class FunctionDelta(Struct, omit_defaults=True):
    """A piece of a call; the name comes once."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(Struct, omit_defaults=True, kw_only=True):
    """A piece of a tool call; id and type come once."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta


class AudioDelta(Struct, omit_defaults=True):
    """A piece of a spoken answer."""

    id: str | UnsetType = UNSET
    transcript: str | UnsetType = UNSET
    data: str | UnsetType = UNSET
    """Base64; pieces decode alone and joined."""
    expires_at: int | UnsetType = UNSET


class Delta(Struct, omit_defaults=True):
    """What a chunk adds to a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    audio: AudioDelta | UnsetType = UNSET


class ChunkChoice(Struct):
    """The part of a chunk that belongs to one choice."""

    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReasonName | None = None


class Chunk(Struct, kw_only=True):
    """One event of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    token_count: int | UnsetType = UNSET
    timing: Timing | UnsetType = UNSET


class FunctionCall(Struct):
    """A call's function."""

    name: str
    arguments: str


class ToolCall(Struct, kw_only=True):
    """A whole tool call."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class SpokenAnswer(Struct):
    """The answer as audio."""

    id: str
    data: str
    """Base64."""
    transcript: str
    expires_at: int


class Message(Struct, kw_only=True):
    """The whole answer of one choice."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    audio: SpokenAnswer | UnsetType = UNSET


class Choice(Struct):
    """One answer."""

    index: int
    message: Message
    finish_reason: FinishReasonName
    logprobs: ChoiceLogprobs | None = None


class Completion(Struct, kw_only=True):
    """The whole response."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage
    timing: Timing | UnsetType = UNSET


def logprobs_of(items: Sequence[generation.TokenLogprob]) -> ChoiceLogprobs:
    """Log-probabilities of tokens; bytes are the token's own, also inside a character."""
    return ChoiceLogprobs(
        [
            TokenLogprob(
                token=_text(item.token),
                logprob=item.logprob,
                bytes=list(item.token),
                top_logprobs=[
                    TopLogprob(_text(other.token), other.logprob, list(other.token))
                    for other in item.alternatives
                ],
            )
            for item in items
        ]
    )


class ChatFrames:
    """Builds the events of one stream.

    Text chunks, the hot ones, are byte halves around the escaped text; everything else goes
    through the generic encoder. Both give the same bytes for the same chunk.

    Args:
        completion_id: id of every chunk.
        created: seconds since the epoch.
        model: model as requested.
        fingerprint: the engine's.
        choice_count: number of choices.
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
        self._halves = [self._split(choice) for choice in range(choice_count)]

    def roles(self, *, spoken: bool = False) -> bytes:
        """The first chunk of every choice; spoken answers have no content."""
        content = UNSET if spoken else ""
        return b"".join(
            self._frame(ChunkChoice(choice, Delta(role="assistant", content=content)))
            for choice in range(len(self._halves))
        )

    def delta(self, event: generation.Delta) -> bytes:
        """The chunk of new output; empty where it has nothing to show."""
        if event.is_plain:
            return self.text(event.choice, event.text, event.token_count) if event.text else b""
        calls = _without_repeats(event.tool_calls)
        delta = Delta(
            content=event.text or UNSET,
            reasoning_content=event.reasoning or UNSET,
            reasoning=event.reasoning or UNSET,
            tool_calls=calls[0] if calls else UNSET,
        )
        if event.logprobs and delta.content is UNSET and delta.reasoning is UNSET:
            # Tokens whose text is held back still have log-probabilities.
            delta.content = ""
        if delta == Delta():
            return b""
        logprobs = logprobs_of(event.logprobs) if event.logprobs else None
        choice = ChunkChoice(event.choice, delta, logprobs)
        frame = self._frame(choice, token_count=event.token_count)
        for pieces in calls[1:]:
            frame += self._frame(ChunkChoice(event.choice, Delta(tool_calls=pieces)))
        return frame

    def audio(self, delta: AudioDelta, *, choice: int = 0, token_count: int = 0) -> bytes:
        """The chunk of a piece of a spoken answer."""
        return self._frame(ChunkChoice(choice, Delta(audio=delta)), token_count)

    def text(self, choice: int, text: str, token_count: int) -> bytes:
        """The chunk of visible text."""
        before, after = self._halves[choice]
        if self._counts:
            after = after[:-3] + b',"token_count":%d}\n\n' % token_count
        return before + encode(text) + after

    def finish(self, choice: int, reason: FinishReasonName) -> bytes:
        """The last chunk of one choice."""
        return self._frame(ChunkChoice(choice, Delta(), finish_reason=reason))

    def usage(self, usage: Usage | None, timing: Timing | None) -> bytes:
        """The last chunk of a stream that reports usage or timing; it has no choices."""
        return sse_frame(
            Chunk(
                id=self._id,
                created=self._created,
                model=self._model,
                system_fingerprint=self._fingerprint,
                choices=[],
                usage=UNSET if usage is None else usage,
                timing=UNSET if timing is None else timing,
            )
        )

    def chunk(self, choice: ChunkChoice, token_count: int = 0) -> Chunk:
        """A chunk by the generic way."""
        return Chunk(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=[choice],
            usage=self._usage,
            token_count=token_count if self._counts else UNSET,
        )

    def _frame(self, choice: ChunkChoice, token_count: int = 0) -> bytes:
        return sse_frame(self.chunk(choice, token_count))

    def _split(self, choice: int) -> tuple[bytes, bytes]:
        chunk = self.chunk(ChunkChoice(choice, Delta(content="\x00")))
        chunk.token_count = UNSET
        before, mark, after = sse_frame(chunk).partition(encode("\x00"))
        assert mark
        return before, after


def sse_frame(value: Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(value) + b"\n\n"


def error_frame(body: ErrorBody) -> bytes:
    """The event that ends a stream which failed after its status was sent."""
    return sse_frame(body)


def _without_repeats(calls: Sequence[generation.ToolCallDelta]) -> list[list[ToolCallDelta]]:
    """Pieces for the chunks that carry them; in each, an index occurs once."""
    chunks: list[list[ToolCallDelta]] = []
    for call in calls:
        for piece in _pieces(call):
            if not chunks or any(piece.index == other.index for other in chunks[-1]):
                chunks.append([])
            chunks[-1].append(piece)
    return chunks


def _pieces(call: generation.ToolCallDelta) -> list[ToolCallDelta]:
    """A call begins with a piece that names it and has no arguments."""
    pieces = []
    if call.id:
        head = FunctionDelta(name=call.name, arguments="")
        pieces.append(ToolCallDelta(index=call.index, id=call.id, type="function", function=head))
    if call.arguments:
        pieces.append(
            ToolCallDelta(index=call.index, function=FunctionDelta(arguments=call.arguments))
        )
    return pieces


def _text(token: bytes) -> str:
    return token.decode("utf-8", "replace")
