"""POST /v1/chat/completions."""

from __future__ import annotations

from contextlib import AsyncExitStack

from antiphon_core.errors import InvalidArgument
from msgspec import UNSET

from antiphon_gateway.convert.chat import chat_request
from antiphon_gateway.domain.generation import Accepted
from antiphon_gateway.http import Receive, Scope, Send, cancel_on_disconnect, send_response
from antiphon_gateway.openai import chat_output as output
from antiphon_gateway.openai.chat import ChatRequest
from antiphon_gateway.openai.common import timing_of, usage_of
from antiphon_gateway.openai.fields import CHAT
from antiphon_gateway.routes.common import (
    Collected,
    CollectedChoice,
    StreamReport,
    collect,
    finish_of,
    first_event,
    gateway_of,
    model_name,
    new_id,
    note_headers,
    now,
    read_request,
    stream_generation,
)
from antiphon_gateway.routes.spoken_answer import (
    SpokenSink,
    open_voice,
    speak_answers,
    spoken_options,
    stream_spoken,
)
from antiphon_gateway.sse import StreamWriter


class ChatCompletions:
    """The route as a bare ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        request, headers = await read_request(scope, receive, ChatRequest, CHAT, "chat")
        if request.stream_options is not None and not request.stream:
            raise InvalidArgument("stream_options needs stream: true", field="stream_options")
        model = gateway.backends.llm.resolve(model_name(request.model, request.lora))
        spoken = spoken_options(request, model, gateway.backends)
        notes = () if spoken is None else spoken.notes
        generate = chat_request(request, model, gateway.settings.limits.request_seconds)
        if request.stream:
            writer = StreamWriter(send, gateway.settings.limits)
            async with cancel_on_disconnect(receive), writer.watched(), AsyncExitStack() as stack:
                generation = gateway.backends.llm.generate(generate)
                events = await stack.enter_async_context(generation)
                # The voice and the model are asked at once; both may still refuse with a status.
                voice = (
                    await stack.enter_async_context(open_voice(spoken, gateway.backends))
                    if spoken
                    else None
                )
                accepted = await first_event(events)
                await writer.start([*headers, *note_headers([accepted], notes)])
                frames = _frames(request, accepted, generate.choice_count)
                await writer.write(frames.roles(spoken=voice is not None))
                if voice is None:
                    await stream_generation(writer, events, frames, _report(request))
                else:
                    await stream_spoken(SpokenSink(writer, frames, _report(request)), events, voice)
            await writer.end()
            return
        async with cancel_on_disconnect(receive):
            async with gateway.backends.llm.generate(generate) as events:
                accepted = await first_event(events)
                collected = await collect(events, generate.choice_count)
            completion = _completion(request, accepted, collected)
            if spoken is not None:
                await speak_answers(completion, collected, spoken, gateway.backends)
        headers = [*headers, *note_headers([accepted], notes)]
        await send_response(send, 200, output.encode(completion), headers=headers)


def _report(request: ChatRequest) -> StreamReport:
    options = request.stream_options
    return StreamReport(
        usage=bool(options and options.include_usage), timing=bool(request.return_timing)
    )


def _frames(request: ChatRequest, accepted: Accepted, choice_count: int) -> output.ChatFrames:
    options = request.stream_options
    return output.ChatFrames(
        completion_id=new_id("chatcmpl"),
        created=now(),
        model=request.model or accepted.model,
        fingerprint=accepted.fingerprint,
        choice_count=choice_count,
        include_usage=bool(options and options.include_usage),
        include_token_count=bool(options and options.include_token_count),
    )


def _completion(
    request: ChatRequest, accepted: Accepted, collected: Collected
) -> output.Completion:
    completed = collected.completed
    return output.Completion(
        id=new_id("chatcmpl"),
        created=now(),
        model=request.model or accepted.model,
        system_fingerprint=accepted.fingerprint,
        choices=[
            output.Choice(
                index=index,
                message=_message(choice),
                finish_reason=finish_of(choice),
                logprobs=output.logprobs_of(choice.logprobs) if request.logprobs else None,
            )
            for index, choice in enumerate(collected.choices)
        ],
        usage=usage_of(completed.usage),
        timing=timing_of(completed.timings) if request.return_timing else UNSET,
    )


def _message(choice: CollectedChoice) -> output.Message:
    text = choice.text
    reasoning = "".join(choice.reasoning) or UNSET
    calls = [
        output.ToolCall(id=call_id, function=output.FunctionCall(name, arguments))
        for _, (call_id, name, arguments) in sorted(choice.calls.items())
    ]
    return output.Message(
        content=text if text or not calls else None,
        reasoning_content=reasoning,
        reasoning=reasoning,
        tool_calls=calls or UNSET,
    )
