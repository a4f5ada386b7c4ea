"""Generation requests and the events that answer them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from antiphon_core.errors import AntiphonError
from msgspec import Struct, field

MERGED_CHARACTERS = 4096
"""Length from which a delta's text is not appended to."""


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


class ImageContent(Struct, frozen=True):
    """An encoded image by value."""

    data: bytes
    mime_type: str


class AudioContent(Struct, frozen=True):
    """Encoded audio by value."""

    data: bytes
    encoding: str
    """One of ``antiphon_gateway.domain.speech.ENCODINGS``."""
    sample_rate: int = 0
    """Samples a second; 0 reads it from the container."""


Content = str | ImageContent | AudioContent
"""One piece of message content; text is a plain string."""


class ToolCall(Struct, frozen=True):
    """A call that the model made."""

    id: str
    name: str
    arguments: str
    """JSON text."""


class Message(Struct, frozen=True):
    """One message of a conversation."""

    role: Role
    parts: tuple[Content, ...] = ()
    name: str = ""
    tool_call_id: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""


class Tool(Struct, frozen=True):
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


class ToolChoice(Struct, frozen=True):
    """Which tools may or must be called."""

    mode: ToolMode = ToolMode.AUTO
    name: str = ""
    allowed: tuple[str, ...] = ()
    single_call: bool = False


class ChatInput(Struct, frozen=True):
    """Messages and what the chat template needs beside them."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice | None = None
    template_kwargs: str = ""
    """JSON object text of further template variables."""
    continue_final_message: bool = False
    reasoning_effort: str = ""
    thinking_budget: int | None = None


class Sampling(Struct, frozen=True):
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
    allowed_token_ids: Sequence[int] = ()
    """The only ids that may be drawn; empty allows all."""
    banned_token_ids: Sequence[int] = ()
    no_repeat_ngram_size: int | None = None
    no_repeat_ngram_window: int | None = None
    draft_depth: int | None = None
    """Most draft tokens of a step; None leaves it to the engine."""


class Stop(Struct, frozen=True):
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


class Constraint(Struct, frozen=True):
    """A bound on the form of the output."""

    kind: ConstraintKind
    value: str | tuple[str, ...] = ""
    """Schema, expression or grammar text; the strings of CHOICE; empty for JSON_OBJECT."""
    strict: bool = False


class GenerateRequest(Struct, frozen=True):
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
    speech: bool = False
    """Whether speech codes are wanted besides text."""


class TokenAlternative(Struct, frozen=True):
    """A token with its log-probability."""

    token_id: int
    token: bytes
    logprob: float


class TokenLogprob(Struct, frozen=True):
    """The token at one position with its best alternatives."""

    token_id: int
    token: bytes
    logprob: float
    alternatives: tuple[TokenAlternative, ...] = ()
    rank: int = 0
    """1 + the number of tokens that were more probable; 0 without a log-probability."""


class ToolCallDelta(Struct, frozen=True):
    """A piece of a tool call; id and name come in the first piece only."""

    index: int
    id: str
    name: str
    arguments: str


class Accepted(Struct, frozen=True):
    """The engine took the request; always the first event."""

    request_id: str
    model: str
    fingerprint: str
    prompt_tokens: int
    notes: tuple[str, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class Delta(Struct):
    """New output of one choice; text is final."""

    choice: int
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    token_ids: tuple[int, ...] = ()
    token_count: int = 0
    codes: tuple[int, ...] = ()
    """Whole frames of speech codes, frame after frame, in the model's code format."""

    @property
    def is_plain(self) -> bool:
        """Whether it carries visible text and nothing else."""
        return not (
            self.reasoning or self.tool_calls or self.logprobs or self.token_ids or self.codes
        )

    def takes_text_of(self, choice: int) -> bool:
        """Whether further visible text of a choice can be appended: each time copies what is
        there, so a long text takes no more."""
        return self.choice == choice and len(self.text) < MERGED_CHARACTERS and self.is_plain


class FinishReason(StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    ERROR = "error"


class Finished(Struct, frozen=True):
    """The end of one choice."""

    choice: int
    reason: FinishReason
    stop_string: str = ""
    stop_token_id: int = -1
    error: AntiphonError | None = None
    """What failed, for ERROR."""


class Usage(Struct, frozen=True):
    """Token counts; the prompt is counted once for all choices."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int | None = None
    audio_tokens: int | None = None
    accepted_draft_tokens: int | None = None
    rejected_draft_tokens: int | None = None


class Timings(Struct, frozen=True):
    """Durations of a request's phases in seconds."""

    queued: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


class Completed(Struct, frozen=True):
    """The end of the request; always the last event of a call that did not fail."""

    usage: Usage
    timings: Timings = Timings()


GenerateEvent = Accepted | Delta | Finished | Completed


class Tokenized(Struct, frozen=True):
    """Tokens of an input, exactly as a generation would see them."""

    ids: tuple[int, ...]
    context_limit: int
    rendered: str = ""
