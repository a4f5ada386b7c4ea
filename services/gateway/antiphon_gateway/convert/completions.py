"""Text completion requests from the OpenAI wire to the domain: one generation per prompt."""

from __future__ import annotations

from antiphon_core.errors import InvalidArgument

from antiphon_gateway.convert.sampling import (
    at_most_one_constraint,
    sampling_of,
    stop_of,
)
from antiphon_gateway.domain import generation
from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.openai.completions import MAX_PROMPTS, CompletionRequest

Prompt = str | list[int]


def prompts_of(request: CompletionRequest) -> list[Prompt]:
    """The prompts, each text or token ids.

    Raises:
        InvalidArgument: kinds are mixed, a prompt is empty, or there are too many.
    """
    prompt = request.prompt
    if isinstance(prompt, str):
        return [_not_empty(prompt, "prompt")]
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise InvalidArgument(
            "prompt must be a string, strings, token ids, or lists of token ids, not a mixture",
            field="prompt",
        )
    if kinds == {int}:
        return [[item for item in prompt if isinstance(item, int)]]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidArgument(
            f"prompt has {len(prompt)} entries; at most {MAX_PROMPTS} are allowed",
            field="prompt",
            metadata={"limit": str(MAX_PROMPTS), "observed": str(len(prompt))},
        )
    found: list[Prompt] = []
    for index, item in enumerate(prompt):
        if isinstance(item, str):
            found.append(_not_empty(item, f"prompt[{index}]"))
        elif isinstance(item, list):
            found.append(item)
    return found


def completion_requests(
    request: CompletionRequest, model: ModelInfo, timeout: float
) -> list[generation.GenerateRequest]:
    """One generation per prompt, in order.

    Raises:
        InvalidArgument: a combination of fields that cannot be served.
    """
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise InvalidArgument(
            "best_of must equal n: candidates beyond n are not generated",
            reason="UNSUPPORTED_OPTION",
            field="best_of",
        )
    return [
        generation.GenerateRequest(
            input=prompt,
            model=model.id,
            sampling=sampling_of(request),
            # A scoring request ends with its admission; one token is the contract's least.
            stop=stop_of(request, 1 if request.max_tokens == 0 else request.max_tokens),
            choice_count=request.n or 1,
            logprobs=request.logprobs,
            prompt_logprobs=_prompt_logprobs(request),
            constraint=at_most_one_constraint(request),
            timeout=timeout,
        )
        for prompt in prompts_of(request)
    ]


def _prompt_logprobs(request: CompletionRequest) -> int | None:
    if request.prompt_logprobs is not None:
        return request.prompt_logprobs
    return request.logprobs if request.echo else None


def _not_empty(prompt: str, path: str) -> str:
    if not prompt:
        raise InvalidArgument(f"{path} is empty", reason="EMPTY_PROMPT", field=path)
    return prompt
