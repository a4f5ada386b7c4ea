"""What a session hears besides client events: backends, the socket and the clock."""

from __future__ import annotations

from msgspec import Struct

from antiphon_gateway.domain.generation import Usage
from antiphon_gateway.domain.recognition import TranscriptSegment
from antiphon_gateway.domain.speech import SpeechConfig
from antiphon_gateway.realtime.errors import BackendFailure, ProtocolError
from antiphon_gateway.realtime.events import ClientEvent, Logprob, RateLimit


class Opened(Struct, frozen=True):
    """The socket is accepted."""


class BadFrame(Struct, frozen=True):
    """A frame that is no client event."""

    error: ProtocolError
    event_id: str | None


class SpeechBegan(Struct, frozen=True):
    """The recogniser heard speech begin; ms from the stream's first sample."""

    epoch: int
    utterance: int
    at_ms: int


class SpeechEnded(Struct, frozen=True):
    """The recogniser heard speech end."""

    epoch: int
    utterance: int
    at_ms: int
    forced: bool = False
    """The longest silence ended a judged turn, not the judge."""


class PartialText(Struct, frozen=True):
    """Leading text of an utterance that goes on; it will not be revised."""

    epoch: int
    utterance: int
    text: str


class Transcript(Struct, frozen=True):
    """Text of an utterance that is over."""

    epoch: int
    utterance: int
    text: str
    tag: str
    logprobs: tuple[Logprob, ...] = ()
    segments: tuple[TranscriptSegment, ...] = ()


class UtteranceFailed(Struct, frozen=True):
    """One utterance could not be recognised."""

    epoch: int
    utterance: int
    failure: BackendFailure
    tag: str


class RecognizerFailed(Struct, frozen=True):
    """The recogniser stream broke."""

    epoch: int
    failure: BackendFailure
    idle: bool = False
    """It ended only because no audio came for long; the next audio opens another."""


class ItemTranscribed(Struct, frozen=True):
    """Audio of a created item was recognised, or not."""

    item_id: str
    text: str
    failure: BackendFailure | None = None
    logprobs: tuple[Logprob, ...] = ()
    segments: tuple[TranscriptSegment, ...] = ()


class PromptAccepted(Struct, frozen=True):
    """The language model took the prompt."""

    response_id: str
    prompt_tokens: int


class TextProduced(Struct, frozen=True):
    """Visible text of the reply."""

    response_id: str
    text: str
    token_count: int


class CallProduced(Struct, frozen=True):
    """A piece of a tool call; name and id come in the first piece."""

    response_id: str
    index: int
    call_id: str
    name: str
    arguments: str
    token_count: int


class TextEnded(Struct, frozen=True):
    """The language model has finished; the voice may still speak."""

    response_id: str
    cut: bool
    """The length bound or the context limit ended it."""
    usage: Usage | None


class AudioProduced(Struct, frozen=True):
    """Audio of the reply in the output format."""

    response_id: str
    data: bytes
    sample_count: int


class SpokenUpTo(Struct, frozen=True):
    """Characters of the reply that are spoken by a sample."""

    response_id: str
    characters: int
    sample: int


class ReplyEnded(Struct, frozen=True):
    """All text and audio of the reply have been reported."""

    response_id: str


class ReplyFailed(Struct, frozen=True):
    """A backend failed."""

    response_id: str
    failure: BackendFailure
    limit: int = 0
    """Context limit in tokens, where the prompt was too long and the backend said so."""
    observed: int = 0
    """Tokens of the refused prompt."""


Report = (
    PromptAccepted
    | TextProduced
    | CallProduced
    | TextEnded
    | AudioProduced
    | SpokenUpTo
    | ReplyEnded
    | ReplyFailed
)
"""What a running reply says."""


class AudioSent(Struct, frozen=True):
    """An audio event has left for the client."""

    response_id: str
    item_id: str
    sample_count: int


class RateLimitsKnown(Struct, frozen=True):
    """What is left of the limits of the session's key and tenant."""

    limits: tuple[RateLimit, ...]


class Summarized(Struct, frozen=True):
    """A summary was made, or could not be."""

    number: int
    text: str


class PhraseReady(Struct, frozen=True):
    """Audio of an acknowledgement phrase; empty when it could not be made."""

    text: str
    speech: SpeechConfig
    data: bytes


class Tick(Struct, frozen=True):
    """Time has passed."""

    load: float = 0.0
    """Busiest share of what the backends can do at once, 0 to 1."""


class Drain(Struct, frozen=True):
    """The process is shutting down: finish the active response, then close."""


Input = (
    Opened
    | BadFrame
    | ClientEvent
    | SpeechBegan
    | SpeechEnded
    | PartialText
    | Transcript
    | UtteranceFailed
    | RecognizerFailed
    | ItemTranscribed
    | Report
    | AudioSent
    | RateLimitsKnown
    | Summarized
    | PhraseReady
    | Tick
    | Drain
)
