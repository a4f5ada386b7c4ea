"""Generation requests and the events that answer them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from antiphon_core.errors import AntiphonError


class Role(StrEnum):
    """Who speaks in a chat message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    DEVELOPER = "developer"


class Modality(StrEnum):
    """A kind of content."""

    TEXT = "text"
    AUDIO = "audio"
    IMAGE = "image"


@dataclass(frozen=True, slots=True)
class ImageContent:
    """An encoded image by value."""

    data: bytes
    mime_type: str


@dataclass(frozen=True, slots=True)
class AudioContent:
    """Encoded audio by value."""

    data: bytes
    encoding: str
    """One of ``antiphon_gateway.domain.speech.ENCODINGS``."""
    sample_rate: int = 0
    """Samples a second; 0 reads it from the container."""


Content = str | ImageContent | AudioContent
"""One piece of message content; text is a plain string."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made."""

    id: str
    name: str
    arguments: str
    """JSON text."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    parts: tuple[Content, ...] = ()
    name: str = ""
    tool_call_id: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function offered to the model."""

    name: str
    description: str = ""
    parameters: str = ""
    """JSON schema text; empty takes no arguments."""
    strict: bool = False


class ToolMode(StrEnum):
    """How free the model is to call tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools may or must be called."""

    mode: ToolMode = ToolMode.AUTO
    name: str = ""
    allowed: tuple[str, ...] = ()
    single_call: bool = False


@dataclass(frozen=True, slots=True)
class ChatInput:
    """Messages and what the chat template needs beside them."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice | None = None
    template_kwargs: str = ""
    """JSON object text of further template variables."""
    continue_final_message: bool = False
    reasoning_effort: str = ""
    thinking_budget: int | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Draw settings; None takes the model's generation config."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    min_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """When generation ends."""

    max_tokens: int | None = None
    strings: Sequence[str] = ()
    token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop: bool = False


class ConstraintKind(StrEnum):
    """How the form of the output is bounded; values are the proto's oneof names."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    EBNF = "ebnf"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A bound on the form of the output."""

    kind: ConstraintKind
    value: str | tuple[str, ...] = ""
    """Schema, expression or grammar text; the strings of CHOICE; empty for JSON_OBJECT."""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Asks for one or more continuations of one input."""

    input: ChatInput | str | Sequence[int]
    """Messages, text, or token ids."""
    model: str = ""
    sampling: Sampling = Sampling()
    stop: Stop = Stop()
    choice_count: int = 1
    logprobs: int | None = None
    """Alternatives per output token; None reports no log-probabilities."""
    prompt_logprobs: int | None = None
    token_ids: bool = False
    constraint: Constraint | None = None
    timeout: float | None = None
    """Seconds until the call's deadline; None sets none."""


@dataclass(frozen=True, slots=True)
class TokenAlternative:
    """A token with its log-probability."""

    token_id: int
    token: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The token at one position with its best alternatives."""

    token_id: int
    token: bytes
    logprob: float
    alternatives: tuple[TokenAlternative, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call; id and name come in the first piece only."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The engine took the request; always the first event."""

    request_id: str
    model: str
    fingerprint: str
    prompt_tokens: int
    notes: tuple[str, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True)
class Delta:
    """New output of one choice; text is final."""

    choice: int
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    token_ids: tuple[int, ...] = ()
    token_count: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether it carries visible text and nothing else, so that it can be merged."""
        return not (self.reasoning or self.tool_calls or self.logprobs or self.token_ids)


class FinishReason(StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one choice."""

    choice: int
    reason: FinishReason
    stop_string: str = ""
    stop_token_id: int = -1
    error: AntiphonError | None = None
    """What failed, for ERROR."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; the prompt is counted once for all choices."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int | None = None
    audio_tokens: int | None = None
    accepted_draft_tokens: int | None = None
    rejected_draft_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations of a request's phases in seconds."""

    queued: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


@dataclass(frozen=True, slots=True)
class Completed:
    """The end of the request; always the last event of a call that did not fail."""

    usage: Usage
    timings: Timings = Timings()


GenerateEvent = Accepted | Delta | Finished | Completed


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Tokens of an input, exactly as a generation would see them."""

    ids: tuple[int, ...]
    context_limit: int
    rendered: str = ""
