"""What a generation tells its reader, in order: accepted, deltas, finished, completed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon_core.errors import AntiphonError

from antiphon_llm.messages import Sampling


@dataclass(frozen=True, slots=True)
class TokenAlternative:
    """A token that could have stood at a position."""

    token_id: int
    token: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its log-probability, from the unfiltered distribution."""

    token_id: int
    token: bytes
    """The token's own bytes, possibly part of a UTF-8 character."""
    logprob: float
    alternatives: Sequence[TokenAlternative] = ()
    rank: int = 0
    """1 + the number of more probable tokens; 0 where there is no log-probability."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The engine took the request."""

    request_id: str
    model: str
    fingerprint: str
    prompt_tokens: int
    notes: Sequence[str] = ()
    """What was accepted but weakened."""
    prompt_logprobs: Sequence[TokenLogprob] = ()
    """One item per prompt token; the first has no alternatives and the log-probability 0."""


@dataclass(slots=True)
class ToolCallPiece:
    """A piece of a tool call; the first has id and name."""

    index: int
    """Of the call within its choice."""
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class CodeRun:
    """Whole frames of speech codes."""

    codes: Sequence[int]
    """Frame after frame, ``codebook_count`` codes each, the lowest codebook first."""
    codebook_count: int
    frame_rate: float
    """Frames a second."""


@dataclass(slots=True)
class Delta:
    """New output of one choice."""

    choice: int
    text: str
    token_count: int
    token_ids: Sequence[int] = ()
    logprobs: Sequence[TokenLogprob] = ()
    reasoning: str = ""
    tool_calls: Sequence[ToolCallPiece] = ()
    codes: CodeRun | None = None

    @property
    def plain(self) -> bool:
        """Whether it has nothing but text."""
        return not (
            self.token_ids or self.logprobs or self.reasoning or self.tool_calls or self.codes
        )


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """The end of one choice: stop, tool_calls, length, context, cancelled or error."""

    choice: int
    reason: str
    stop_string: str = ""
    stop_token_id: int = -1
    error: AntiphonError | None = None


@dataclass(slots=True)
class Usage:
    """Token counts; the prompt once for all choices."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int | None = None
    """None where no choice had a reasoning block."""
    audio_tokens: int | None = None
    """Speech codes; None where the request asked for text only."""
    accepted_drafts: int = 0
    rejected_drafts: int = 0


@dataclass(slots=True)
class Timings:
    """Seconds."""

    queued: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


@dataclass(frozen=True, slots=True)
class Completed:
    """The end of the request, and the settings that it was drawn with."""

    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    settings: Sampling = field(default_factory=Sampling)


Event = Accepted | Delta | ChoiceFinished | Completed
