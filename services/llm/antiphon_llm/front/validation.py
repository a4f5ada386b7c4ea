"""Checks requests against their documented ranges.

Nothing is clamped: a value outside its range is refused with the field's path and the range.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon_core.errors import InvalidArgument

from antiphon_llm.front.constraints import check_companions
from antiphon_llm.front.conversation import Message
from antiphon_llm.front.ranges import check_count, check_ids, check_range
from antiphon_llm.front.requests import ChatInput, GenerationRequest, OutputOptions, StopOptions
from antiphon_llm.front.sampling_rules import check_sampling
from antiphon_llm.front.tools import check_ending, check_tools
from antiphon_llm.output_spec import OutputSpec

CHOICE_LIMIT = 16
LOGPROBS_LIMIT = 20
STOP_STRINGS_LIMIT = 16
STOP_STRING_BYTES = 256
STOP_IDS_LIMIT = 64
EMBED_INPUT_LIMIT = 2048
NAME_CHARACTERS = 64

ROLES = ("system", "user", "assistant", "tool", "developer")


def check_request(
    request: GenerationRequest,
    *,
    vocabulary_size: int,
    draft_depth: int = 0,
    speech: OutputSpec | None = None,
) -> None:
    """Checks everything that does not need the prompt's tokens.

    Args:
        vocabulary_size: of the model's head.
        draft_depth: most drafts of a step at this boot.
        speech: of a model that writes speech codes.

    Raises:
        InvalidArgument: naming the field and what it may hold.
    """
    check_range("choice_count", request.choice_count, 1, CHOICE_LIMIT)
    if request.constraint is not None:
        check_companions(
            ignore_eos=request.stop.ignore_eos, min_tokens=request.sampling.min_tokens or 0
        )
    check_input(request.input, vocabulary_size=vocabulary_size)
    if isinstance(request.input, ChatInput):
        check_ending(
            request.input.tools,
            ignore_eos=request.stop.ignore_eos,
            min_tokens=request.sampling.min_tokens or 0,
        )
    check_sampling(request.sampling, vocabulary_size=vocabulary_size, draft_depth=draft_depth)
    _check_stop(request.stop, vocabulary_size)
    _check_output(request.output, speech)
    _check_text_left(request, vocabulary_size, speech)
    minimum, maximum = request.sampling.min_tokens, request.stop.max_tokens
    if minimum is not None and maximum is not None and minimum > maximum:
        raise InvalidArgument(
            f"sampling.min_tokens is {minimum}, more than stop.max_tokens {maximum}",
            field="sampling.min_tokens",
        )


def check_input(prompt: ChatInput | str | Sequence[int], *, vocabulary_size: int) -> None:
    """Checks a prompt in any of its forms.

    Raises:
        InvalidArgument: naming the field and what it may hold.
    """
    if isinstance(prompt, ChatInput):
        _check_chat(prompt)
    elif isinstance(prompt, str):
        if not prompt:
            raise InvalidArgument("text must not be empty", reason="EMPTY_PROMPT", field="text")
    else:
        if not prompt:
            raise InvalidArgument(
                "tokens.ids must not be empty", reason="EMPTY_PROMPT", field="tokens.ids"
            )
        check_ids("tokens.ids", prompt, vocabulary_size)


def check_embedding_inputs(
    inputs: Sequence[str | Sequence[int]],
    dimensions: int,
    vocabulary_size: int,
    embedding_size: int,
) -> None:
    """Checks an embedding request.

    Raises:
        InvalidArgument: naming the field and what it may hold.
    """
    check_range("dimensions", dimensions, 0, embedding_size)
    check_range("inputs", len(inputs), 1, EMBED_INPUT_LIMIT)
    for place, item in enumerate(inputs):
        if not item:
            raise InvalidArgument(
                f"inputs[{place}] must not be empty",
                reason="EMPTY_PROMPT",
                field=f"inputs[{place}]",
            )
        if not isinstance(item, str):
            check_ids(f"inputs[{place}].tokens.ids", item, vocabulary_size)


def check_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Checks a scoring request.

    Raises:
        InvalidArgument: naming the field and what it may hold.
    """
    check_range("pairs", len(pairs), 1, EMBED_INPUT_LIMIT)
    for place, pair in enumerate(pairs):
        for name, text in zip(("query", "document"), pair, strict=True):
            if not text:
                field = f"pairs[{place}].{name}"
                raise InvalidArgument(
                    f"{field} must not be empty", reason="EMPTY_PROMPT", field=field
                )


def check_read_length(tokens: int, context_limit: int, field: str) -> None:
    """A prompt that nothing is drawn behind fits the context.

    Raises:
        InvalidArgument: EMPTY_PROMPT or CONTEXT_LENGTH_EXCEEDED with limit and observed.
    """
    if tokens == 0:
        raise InvalidArgument(f"{field} has no token", reason="EMPTY_PROMPT", field=field)
    if tokens > context_limit:
        raise InvalidArgument(
            f"{field} has {tokens} tokens, the context limit is {context_limit}",
            reason="CONTEXT_LENGTH_EXCEEDED",
            field=field,
            metadata={"limit": str(context_limit), "observed": str(tokens)},
        )


def check_length(prompt_tokens: int, max_tokens: int | None, context_limit: int) -> None:
    """The prompt and the asked-for output fit the context.

    Raises:
        InvalidArgument: EMPTY_PROMPT or CONTEXT_LENGTH_EXCEEDED with limit and observed.
    """
    if prompt_tokens == 0:
        raise InvalidArgument("the prompt has no token", reason="EMPTY_PROMPT", field="input")
    needed = prompt_tokens + (max_tokens or 1)
    if needed <= context_limit:
        return
    output = f"max_tokens {max_tokens}" if max_tokens else "at least one output token"
    raise InvalidArgument(
        f"the prompt has {prompt_tokens} tokens; with {output} that passes the context limit "
        f"of {context_limit} tokens",
        reason="CONTEXT_LENGTH_EXCEEDED",
        field="stop.max_tokens" if prompt_tokens < context_limit else "input",
        metadata={
            "limit": str(context_limit),
            "observed": str(needed),
            "prompt_tokens": str(prompt_tokens),
        },
    )


def _check_stop(stop: StopOptions, vocabulary_size: int) -> None:
    check_range("stop.max_tokens", stop.max_tokens, 1, None)
    check_count("stop.strings", len(stop.strings), STOP_STRINGS_LIMIT)
    for place, text in enumerate(stop.strings):
        size = len(text.encode())
        if not 1 <= size <= STOP_STRING_BYTES:
            field = f"stop.strings[{place}]"
            raise InvalidArgument(
                f"{field} has {size} bytes, allowed are 1 to {STOP_STRING_BYTES}",
                field=field,
                metadata={"limit": str(STOP_STRING_BYTES), "observed": str(size)},
            )
    check_count("stop.token_ids", len(stop.token_ids), STOP_IDS_LIMIT)
    check_ids("stop.token_ids", stop.token_ids, vocabulary_size)


def _check_output(output: OutputOptions, speech: OutputSpec | None) -> None:
    check_range("output.logprobs", output.logprobs, 0, LOGPROBS_LIMIT)
    check_range("output.prompt_logprobs", output.prompt_logprobs, 0, LOGPROBS_LIMIT)
    allowed = ("text",) if speech is None else ("text", "audio")
    for place, modality in enumerate(output.modalities):
        if modality not in allowed:
            raise InvalidArgument(
                f"the model writes {' and '.join(allowed)} only, not {modality}",
                reason="UNSUPPORTED_MODALITY",
                field=f"output.modalities[{place}]",
                allowed=allowed,
            )


def _check_text_left(
    request: GenerationRequest, vocabulary_size: int, speech: OutputSpec | None
) -> None:
    """A text-only reply of a speech model has an id that may be drawn."""
    allowed, banned = request.sampling.allowed_token_ids, request.sampling.banned_token_ids
    if speech is None or request.output.wants_speech or not (allowed or banned):
        return
    if set(allowed or range(vocabulary_size)) <= {*banned, *speech.speech_ids}:
        raise InvalidArgument(
            "without audio in output.modalities no speech id is drawn, and the allowed and banned "
            "ids leave no other",
            field="sampling.allowed_token_ids" if allowed else "sampling.banned_token_ids",
        )


def _check_chat(chat: ChatInput) -> None:
    conversation = chat.conversation
    if not conversation.messages:
        raise InvalidArgument(
            "chat.messages must have at least one message",
            reason="EMPTY_PROMPT",
            field="chat.messages",
        )
    for place, message in enumerate(conversation.messages):
        _check_message(f"chat.messages[{place}]", message)
    if conversation.continue_final_message and conversation.messages[-1].role != "assistant":
        raise InvalidArgument(
            "chat.continue_final_message needs a last message of the assistant",
            field="chat.continue_final_message",
        )
    check_tools(chat.tools)
    check_range("chat.thinking_budget", chat.thinking_budget, 0, None)


def _check_message(field: str, message: Message) -> None:
    if message.role not in ROLES:
        raise InvalidArgument(
            f"{field}.role is required", reason="MISSING_FIELD", field=f"{field}.role",
            allowed=ROLES,
        )  # fmt: skip
    if len(message.name) > NAME_CHARACTERS:
        raise InvalidArgument(
            f"{field}.name has {len(message.name)} characters, at most {NAME_CHARACTERS}",
            field=f"{field}.name",
        )
    if message.role == "tool" and not message.tool_call_id:
        raise InvalidArgument(
            f"{field}.tool_call_id is required for the role tool",
            reason="MISSING_FIELD",
            field=f"{field}.tool_call_id",
        )
    if message.tool_calls and message.role != "assistant":
        raise InvalidArgument(
            f"{field}.tool_calls belongs to the role assistant", field=f"{field}.tool_calls"
        )
