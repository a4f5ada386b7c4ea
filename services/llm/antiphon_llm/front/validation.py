"""Checks requests against their documented ranges and completes what they leave open.

Nothing is clamped: a value outside its range is refused with the field's path and the range.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import NoReturn

from antiphon_core.errors import InvalidArgument

from antiphon_llm.front.conversation import Message
from antiphon_llm.front.generation_config import SamplingDefaults
from antiphon_llm.front.requests import (
    ChatInput,
    GenerationRequest,
    OutputOptions,
    SamplingOptions,
    StopOptions,
)
from antiphon_llm.messages import Sampling

CHOICE_LIMIT = 16
LOGPROBS_LIMIT = 20
LOGIT_BIAS_LIMIT = 1024
STOP_STRINGS_LIMIT = 16
STOP_STRING_BYTES = 256
STOP_IDS_LIMIT = 64
TOOL_LIMIT = 128
EMBED_INPUT_LIMIT = 2048
NAME_CHARACTERS = 64
_INT64 = 2**63

ROLES = ("system", "user", "assistant", "tool", "developer")


def check_request(request: GenerationRequest, *, vocabulary_size: int) -> None:
    """Checks everything that does not need the prompt's tokens.

    Raises:
        InvalidArgument: naming the field and what it may hold.
    """
    _check_range("choice_count", request.choice_count, 1, CHOICE_LIMIT)
    if request.constraint:
        _unsupported(
            f"constraint.{request.constraint}", "this build does not constrain the output's form"
        )
    check_input(request.input, vocabulary_size=vocabulary_size)
    _check_sampling(request.sampling, vocabulary_size)
    _check_stop(request.stop, vocabulary_size)
    _check_output(request.output)
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
    inputs: Sequence[str | Sequence[int]], dimensions: int, vocabulary_size: int
) -> None:
    """Checks an embedding request.

    Raises:
        InvalidArgument: naming the field and what it may hold.
    """
    _check_range("dimensions", dimensions, 0, None)
    _check_range("inputs", len(inputs), 1, EMBED_INPUT_LIMIT)
    for place, item in enumerate(inputs):
        if not item:
            raise InvalidArgument(
                f"inputs[{place}] must not be empty",
                reason="EMPTY_PROMPT",
                field=f"inputs[{place}]",
            )
        if not isinstance(item, str):
            check_ids(f"inputs[{place}].tokens.ids", item, vocabulary_size)


def check_ids(field: str, ids: Sequence[int], vocabulary_size: int) -> None:
    """Every id lies in the vocabulary.

    Raises:
        InvalidArgument: naming the first that does not.
    """
    if ids and not (min(ids) >= 0 and max(ids) < vocabulary_size):
        place, wrong = next(
            (place, index) for place, index in enumerate(ids) if not 0 <= index < vocabulary_size
        )
        raise InvalidArgument(
            f"{field}[{place}] is {wrong}, outside the vocabulary 0 to {vocabulary_size - 1}",
            field=f"{field}[{place}]",
            metadata={"limit": str(vocabulary_size - 1), "observed": str(wrong)},
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


def resolve_sampling(
    request: GenerationRequest,
    defaults: SamplingDefaults,
    *,
    context_limit: int,
    max_output: int,
) -> Sampling:
    """The engine's draw settings: the request's, completed by the model's defaults.

    Args:
        request: checked.
        defaults: of the model's generation config.
        context_limit: tokens; the bound of an output that names none.
        max_output: configured bound of such an output; 0 leaves the context's.
    """
    asked, stop, output = request.sampling, request.stop, request.output

    def pick(name: str) -> float:
        value = getattr(asked, name)
        return getattr(defaults, name) if value is None else value

    return Sampling(
        temperature=pick("temperature"),
        top_k=int(pick("top_k")),
        top_p=pick("top_p"),
        min_p=pick("min_p"),
        repetition_penalty=pick("repetition_penalty"),
        presence_penalty=pick("presence_penalty"),
        frequency_penalty=pick("frequency_penalty"),
        logit_bias=dict(asked.logit_bias),
        seed=secrets.randbits(63) if asked.seed is None else asked.seed,
        max_tokens=stop.max_tokens or max_output or context_limit,
        min_tokens=asked.min_tokens or 0,
        stop_token_ids=list(stop.token_ids),
        ignore_eos=stop.ignore_eos,
        logprobs=-1 if output.logprobs is None else output.logprobs,
        prompt_logprobs=-1 if output.prompt_logprobs is None else output.prompt_logprobs,
    )


def _check_sampling(asked: SamplingOptions, vocabulary_size: int) -> None:
    temperature = asked.temperature
    if temperature is not None and temperature != 0:
        _check_range("sampling.temperature", temperature, 0.001, 100, " or 0 (greedy)")
    _check_range("sampling.top_k", asked.top_k, 0, None)
    _check_range("sampling.top_p", asked.top_p, 0, 1)
    _check_range("sampling.min_p", asked.min_p, 0, 1)
    _check_range("sampling.repetition_penalty", asked.repetition_penalty, 0.01, 10)
    _check_range("sampling.presence_penalty", asked.presence_penalty, -2, 2)
    _check_range("sampling.frequency_penalty", asked.frequency_penalty, -2, 2)
    _check_range("sampling.min_tokens", asked.min_tokens, 0, None)
    _check_range("sampling.seed", asked.seed, -_INT64, _INT64 - 1)
    if asked.draft_depth:
        _unsupported("sampling.draft_depth", "this build does not speculate", allowed=("0",))
    _check_count("sampling.logit_bias", len(asked.logit_bias), LOGIT_BIAS_LIMIT)
    for token_id, bias in asked.logit_bias.items():
        field = f"sampling.logit_bias[{token_id}]"
        if not 0 <= token_id < vocabulary_size:
            raise InvalidArgument(
                f"{field} is outside the vocabulary 0 to {vocabulary_size - 1}", field=field
            )
        _check_range(field, bias, -100, 100)


def _check_stop(stop: StopOptions, vocabulary_size: int) -> None:
    _check_range("stop.max_tokens", stop.max_tokens, 1, None)
    _check_count("stop.strings", len(stop.strings), STOP_STRINGS_LIMIT)
    for place, text in enumerate(stop.strings):
        size = len(text.encode())
        if not 1 <= size <= STOP_STRING_BYTES:
            field = f"stop.strings[{place}]"
            raise InvalidArgument(
                f"{field} has {size} bytes, allowed are 1 to {STOP_STRING_BYTES}",
                field=field,
                metadata={"limit": str(STOP_STRING_BYTES), "observed": str(size)},
            )
    _check_count("stop.token_ids", len(stop.token_ids), STOP_IDS_LIMIT)
    check_ids("stop.token_ids", stop.token_ids, vocabulary_size)


def _check_output(output: OutputOptions) -> None:
    _check_range("output.logprobs", output.logprobs, 0, LOGPROBS_LIMIT)
    _check_range("output.prompt_logprobs", output.prompt_logprobs, 0, LOGPROBS_LIMIT)
    for place, modality in enumerate(output.modalities):
        if modality != "text":
            raise InvalidArgument(
                f"the model writes text only, not {modality}",
                reason="UNSUPPORTED_MODALITY",
                field=f"output.modalities[{place}]",
                allowed=("text",),
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
    _check_count("chat.tools", chat.tools.count, TOOL_LIMIT)
    if chat.tools.choice != "none":
        _unsupported(
            "chat.tools" if chat.tools.count else "chat.tool_choice",
            "this build does not call tools; tool_choice must be none",
        )
    if chat.thinking_budget is not None:
        _unsupported("chat.thinking_budget", "this build does not bound reasoning")


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


def _check_range(
    field: str,
    value: float | None,
    low: float,
    high: float | None,
    besides: str = "",
) -> None:
    if value is None:
        return
    if math.isfinite(value) and value >= low and (high is None or value <= high):
        return
    bounds = f"{low:g} to {high:g}" if high is not None else f"{low:g} or more"
    raise InvalidArgument(
        f"{field} is {value:g}, allowed is {bounds}{besides}",
        field=field,
        metadata={"observed": f"{value:g}", "allowed": bounds + besides},
    )


def _check_count(field: str, count: int, limit: int) -> None:
    if count > limit:
        raise InvalidArgument(
            f"{field} has {count} items, allowed are at most {limit}",
            field=field,
            metadata={"limit": str(limit), "observed": str(count)},
        )


def _unsupported(field: str, why: str, allowed: Sequence[str] = ()) -> NoReturn:
    raise InvalidArgument(
        f"{field} is not served: {why}",
        reason="UNSUPPORTED_OPTION",
        field=field,
        allowed=allowed,
    )
