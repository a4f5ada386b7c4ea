"""What a session hears besides client events: backends, the socket and the clock."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_gateway.domain.generation import Usage
from antiphon_gateway.realtime.errors import BackendFailure, ProtocolError
from antiphon_gateway.realtime.events import ClientEvent


@dataclass(frozen=True, slots=True)
class Opened:
    """The socket is accepted."""


@dataclass(frozen=True, slots=True)
class BadFrame:
    """A frame that is no client event."""

    error: ProtocolError
    event_id: str | None


@dataclass(frozen=True, slots=True)
class SpeechBegan:
    """The recogniser heard speech begin; ms from the stream's first sample."""

    epoch: int
    utterance: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class SpeechEnded:
    """The recogniser heard speech end."""

    epoch: int
    utterance: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Transcript:
    """Text of an utterance that is over."""

    epoch: int
    utterance: int
    text: str
    tag: str


@dataclass(frozen=True, slots=True)
class UtteranceFailed:
    """One utterance could not be recognised."""

    epoch: int
    utterance: int
    failure: BackendFailure
    tag: str


@dataclass(frozen=True, slots=True)
class RecognizerFailed:
    """The recogniser stream broke."""

    epoch: int
    failure: BackendFailure
    idle: bool = False
    """It ended only because no audio came for long; the next audio opens another."""


@dataclass(frozen=True, slots=True)
class ItemTranscribed:
    """Audio of a created item was recognised, or not."""

    item_id: str
    text: str
    failure: BackendFailure | None = None


@dataclass(frozen=True, slots=True)
class PromptAccepted:
    """The language model took the prompt."""

    response_id: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class TextProduced:
    """Visible text of the reply."""

    response_id: str
    text: str
    token_count: int


@dataclass(frozen=True, slots=True)
class CallProduced:
    """A piece of a tool call; name and id come in the first piece."""

    response_id: str
    index: int
    call_id: str
    name: str
    arguments: str
    token_count: int


@dataclass(frozen=True, slots=True)
class TextEnded:
    """The language model has finished; the voice may still speak."""

    response_id: str
    cut: bool
    """The length bound or the context limit ended it."""
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class AudioProduced:
    """Audio of the reply in the output format."""

    response_id: str
    data: bytes
    sample_count: int


@dataclass(frozen=True, slots=True)
class SpokenUpTo:
    """Characters of the reply that are spoken by a sample."""

    response_id: str
    characters: int
    sample: int


@dataclass(frozen=True, slots=True)
class ReplyEnded:
    """All text and audio of the reply have been reported."""

    response_id: str


@dataclass(frozen=True, slots=True)
class ReplyFailed:
    """A backend failed."""

    response_id: str
    failure: BackendFailure
    limit: int = 0
    """Context limit in tokens, where the prompt was too long and the backend said so."""
    observed: int = 0
    """Tokens of the refused prompt."""


@dataclass(frozen=True, slots=True)
class AudioSent:
    """An audio event has left for the client."""

    response_id: str
    item_id: str
    sample_count: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The process is shutting down: finish the active response, then close."""


Input = (
    Opened
    | BadFrame
    | ClientEvent
    | SpeechBegan
    | SpeechEnded
    | Transcript
    | UtteranceFailed
    | RecognizerFailed
    | ItemTranscribed
    | PromptAccepted
    | TextProduced
    | CallProduced
    | TextEnded
    | AudioProduced
    | SpokenUpTo
    | ReplyEnded
    | ReplyFailed
    | AudioSent
    | Tick
    | Drain
)
