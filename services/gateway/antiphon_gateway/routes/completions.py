"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon_core.errors import Internal, InvalidArgument
from msgspec import UNSET

from antiphon_gateway.clients import Backends
from antiphon_gateway.convert.completions import completion_requests
from antiphon_gateway.domain.generation import Accepted, GenerateRequest
from antiphon_gateway.http import Receive, Scope, Send, cancel_on_disconnect, send_response
from antiphon_gateway.openai import completions as wire
from antiphon_gateway.openai.chat_output import encode
from antiphon_gateway.openai.common import timing_of, usage_of
from antiphon_gateway.openai.fields import COMPLETION
from antiphon_gateway.routes.common import (
    CollectedChoice,
    StreamReport,
    collect,
    finish_of,
    gateway_of,
    model_name,
    new_id,
    note_headers,
    now,
    read_request,
    stream_generation,
)
from antiphon_gateway.routes.parallel import Generations, total_timings, total_usage
from antiphon_gateway.sse import StreamWriter


class Completions:
    """The route as a bare ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        request, headers = await read_request(
            scope, receive, wire.CompletionRequest, COMPLETION, "completions"
        )
        _check(request)
        llm = gateway.backends.llm
        model = llm.resolve(model_name(request.model, request.lora))
        limits = gateway.settings.limits
        requests = completion_requests(request, model, limits.request_seconds)
        writer = StreamWriter(send, limits)
        body = b""
        async with cancel_on_disconnect(receive):
            echoes = await _echoes(request, requests, gateway.backends)
            async with Generations(llm, requests) as generations:
                accepted = await generations.admitted()
                _check_prompt_logprobs(requests, accepted)
                headers = [*headers, *note_headers(accepted)]
                if request.stream:
                    frames = _frames(request, accepted[0], len(requests))
                    await writer.start(headers)
                    await writer.write(_opening(request, frames, accepted, echoes))
                    async with writer.watched():
                        events = generations.events()
                        await stream_generation(writer, events, frames, _report(request))
                elif request.max_tokens == 0:
                    body = encode(_scored(request, accepted, echoes))
                else:
                    body = encode(await _completed(request, generations, accepted, echoes))
        if request.stream:
            await writer.end()
        else:
            await send_response(send, 200, body, headers=headers)


def _check(request: wire.CompletionRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise InvalidArgument("stream_options needs stream: true", field="stream_options")
    if request.max_tokens == 0 and request.stream:
        raise InvalidArgument("max_tokens 0 scores the prompt, without stream", field="stream")
    if request.max_tokens == 0 and not (request.echo or request.prompt_logprobs is not None):
        raise InvalidArgument(
            "max_tokens 0 scores the prompt: it needs echo or prompt_logprobs", field="max_tokens"
        )


async def _echoes(
    request: wire.CompletionRequest, requests: Sequence[GenerateRequest], backends: Backends
) -> list[str]:
    """The prompts' texts where they are to be echoed, else empty strings."""
    texts = []
    for item in requests:
        if not request.echo:
            texts.append("")
        elif isinstance(item.input, str):
            texts.append(item.input)
        else:
            assert isinstance(item.input, list)
            texts.append(await backends.llm.detokenize(item.input, model=item.model))
    return texts


def _check_prompt_logprobs(
    requests: Sequence[GenerateRequest], accepted: Sequence[Accepted]
) -> None:
    """Scoring clients index by position, so a short array is worse than an error."""
    for item, admission in zip(requests, accepted, strict=True):
        count = len(admission.prompt_logprobs)
        if item.prompt_logprobs is not None and count != admission.prompt_tokens:
            raise Internal(
                f"the llm service reported {count} prompt log-probabilities "
                f"for {admission.prompt_tokens} tokens"
            )


def _report(request: wire.CompletionRequest) -> StreamReport:
    options = request.stream_options
    return StreamReport(
        usage=bool(options and options.include_usage), timing=bool(request.return_timing)
    )


def _frames(
    request: wire.CompletionRequest, accepted: Accepted, prompt_count: int
) -> wire.CompletionFrames:
    options = request.stream_options
    return wire.CompletionFrames(
        completion_id=new_id("cmpl"),
        created=now(),
        model=request.model or accepted.model,
        fingerprint=accepted.fingerprint,
        choice_count=prompt_count * (request.n or 1),
        include_usage=bool(options and options.include_usage),
        include_token_count=bool(options and options.include_token_count),
    )


def _opening(
    request: wire.CompletionRequest,
    frames: wire.CompletionFrames,
    accepted: Sequence[Accepted],
    echoes: Sequence[str],
) -> bytes:
    """The chunks that come before any output: echoed prompts and their log-probabilities."""
    if not request.echo and request.prompt_logprobs is None:
        return b""
    per_prompt = request.n or 1
    chunks = []
    for index, (admission, echo) in enumerate(zip(accepted, echoes, strict=True)):
        for choice in range(index * per_prompt, (index + 1) * per_prompt):
            text = frames.logprob_texts[choice]
            chunks.append(frames.frame(_choice_head(request, choice, admission, echo, text)))
    return b"".join(chunks)


def _choice_head(
    request: wire.CompletionRequest,
    index: int,
    accepted: Accepted,
    echo: str,
    text: wire.LogprobText,
) -> wire.CompletionChoice:
    """A choice with what is known of it at admission."""
    return wire.CompletionChoice(
        text=echo,
        index=index,
        logprobs=(
            text.convert(accepted.prompt_logprobs, first_is_unknown=True)
            if request.echo and request.logprobs is not None
            else None
        ),
        prompt_logprobs=(
            UNSET
            if request.prompt_logprobs is None
            else wire.prompt_logprobs_of(accepted.prompt_logprobs)
        ),
    )


def _scored(
    request: wire.CompletionRequest, accepted: Sequence[Accepted], echoes: Sequence[str]
) -> wire.Completion:
    """The prompts' scores; no output was asked for."""
    choices = []
    for index, (admission, echo) in enumerate(zip(accepted, echoes, strict=True)):
        choice = _choice_head(request, index, admission, echo, wire.LogprobText())
        choice.finish_reason = "length"
        choices.append(choice)
    usage = total_usage([], prompt_tokens=sum(item.prompt_tokens for item in accepted))
    return _completion(request, accepted[0], choices, usage_of(usage))


async def _completed(
    request: wire.CompletionRequest,
    generations: Generations,
    accepted: Sequence[Accepted],
    echoes: Sequence[str],
) -> wire.Completion:
    per_prompt = request.n or 1
    collected = await collect(generations.events(), per_prompt * len(accepted))
    choices = [
        _choice(request, index, choice, accepted[index // per_prompt], echoes[index // per_prompt])
        for index, choice in enumerate(collected.choices)
    ]
    completion = _completion(request, accepted[0], choices, usage_of(collected.completed.usage))
    if request.return_timing:
        completion.timing = timing_of(total_timings([collected.completed]))
    return completion


def _choice(
    request: wire.CompletionRequest,
    index: int,
    collected: CollectedChoice,
    accepted: Accepted,
    echo: str,
) -> wire.CompletionChoice:
    text = wire.LogprobText()
    choice = _choice_head(request, index, accepted, echo, text)
    choice.text += collected.text
    choice.finish_reason = finish_of(collected)
    if request.logprobs is not None:
        output = text.convert(collected.logprobs)
        head = choice.logprobs or wire.CompletionLogprobs([], [], [], [])
        choice.logprobs = wire.CompletionLogprobs(
            tokens=head.tokens + output.tokens,
            token_logprobs=head.token_logprobs + output.token_logprobs,
            top_logprobs=head.top_logprobs + output.top_logprobs,
            text_offset=head.text_offset + output.text_offset,
        )
    return choice


def _completion(
    request: wire.CompletionRequest,
    accepted: Accepted,
    choices: list[wire.CompletionChoice],
    usage: wire.Usage,
) -> wire.Completion:
    return wire.Completion(
        id=new_id("cmpl"),
        created=now(),
        model=request.model or accepted.model,
        system_fingerprint=accepted.fingerprint,
        choices=choices,
        usage=usage,
    )
