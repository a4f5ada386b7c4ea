"""What callers ask for, as plain data: filled by ``convert``, checked by ``validation``.

Field names are those of the proto, so that an error's field path is the caller's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphon_llm.front.constraints import ConstraintOptions
from antiphon_llm.front.conversation import Conversation
from antiphon_llm.front.tools import ToolOptions


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Draw settings; None where the caller left the choice to the model."""

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
    draft_depth: int | None = None
    allowed_token_ids: Sequence[int] = ()
    banned_token_ids: Sequence[int] = ()
    no_repeat_ngram_size: int | None = None
    no_repeat_ngram_window: int | None = None


@dataclass(frozen=True, slots=True)
class StopOptions:
    """When generation ends."""

    max_tokens: int | None = None
    strings: Sequence[str] = ()
    token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop: bool = False


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What is reported beside the text; None reports no log-probabilities."""

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    token_ids: bool = False
    modalities: Sequence[str] = ()
    """Names: text, audio, image."""

    @property
    def wants_speech(self) -> bool:
        """Whether speech codes are wanted besides text."""
        return "audio" in self.modalities


@dataclass(frozen=True, slots=True)
class ChatInput:
    """Messages and what belongs to them."""

    conversation: Conversation
    tools: ToolOptions = field(default_factory=ToolOptions)
    thinking_budget: int | None = None


PromptInput = ChatInput | str | Sequence[int]
"""Messages, text, or token ids."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request for ``choice_count`` continuations of one input."""

    input: PromptInput
    model: str = ""
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    stop: StopOptions = field(default_factory=StopOptions)
    choice_count: int = 1
    output: OutputOptions = field(default_factory=OutputOptions)
    constraint: ConstraintOptions | None = None
    """On the form of the output."""
    cache: bool = True
    """False neither reads nor writes the prefix cache."""


@dataclass(frozen=True, slots=True)
class RequestScope:
    """On whose behalf and until when a request runs."""

    request_id: str
    deadline: float
    """time.time() seconds."""
    tenant: str = ""
    interactive: bool = True
    traceparent: str = ""
