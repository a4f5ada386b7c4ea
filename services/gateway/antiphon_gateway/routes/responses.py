"""POST /v1/responses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon_core.errors import AntiphonError, InvalidArgument, NotFound
from msgspec.structs import replace

from antiphon_gateway.clients import GenerationStream, LlmClient
from antiphon_gateway.convert.responses import conversation_of, response_request
from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.domain.generation import Accepted, ChatInput, GenerateRequest, Message
from antiphon_gateway.domain.truncation import shortened
from antiphon_gateway.http import Receive, Scope, Send, cancel_on_disconnect, send_response
from antiphon_gateway.identity.principal import current_principal
from antiphon_gateway.openai import response_items as items
from antiphon_gateway.openai.chat_output import encode
from antiphon_gateway.openai.fields import RESPONSE
from antiphon_gateway.openai.response_output import new_response
from antiphon_gateway.openai.responses import ResponseRequest
from antiphon_gateway.routes.common import (
    first_event,
    gateway_of,
    model_name,
    note_headers,
    now,
    read_request,
)
from antiphon_gateway.routes.response_run import ResponseRun
from antiphon_gateway.sse import StreamWriter
from antiphon_gateway.store.records import StoredResponse, new_object_id

if TYPE_CHECKING:
    from antiphon_gateway.app import Gateway
    from antiphon_gateway.store.storage import Storage

PREVIOUS = "previous_response_id"
_MESSAGE = re.compile(r"chat\.messages\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class _Task:
    """A request that has been understood."""

    request: ResponseRequest
    generate: GenerateRequest
    sources: tuple[str, ...]
    """Where each message of the prompt comes from."""
    given: list[items.Item]
    response_id: str
    storage: Storage | None
    """Where to keep the response; None keeps nothing."""

    def run(self, accepted: Accepted) -> ResponseRun:
        """The response, now that the model works on it."""
        response = new_response(
            self.request,
            self.response_id,
            created_at=now(),
            model=self.request.model or accepted.model,
            store=self.storage is not None,
        )
        table = self.storage.responses if self.storage else None
        return ResponseRun(
            response, self.given, table, with_logprobs=self.generate.logprobs is not None
        )


class Responses:
    """The route as a bare ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        request, headers = await read_request(
            scope, receive, ResponseRequest, RESPONSE, "responses", strict=True
        )
        if request.stream_options is not None and not request.stream:
            raise InvalidArgument("stream_options needs stream: true", field="stream_options")
        llm = gateway.backends.llm
        model = llm.resolve(model_name(request.model, request.lora))
        task = await _understood(request, gateway, model)
        if request.stream:
            writer = StreamWriter(send, gateway.settings.limits)
            async with cancel_on_disconnect(receive), writer.watched(), AsyncExitStack() as stack:
                accepted, events = await _admitted(stack, llm, task)
                run = task.run(accepted)
                await writer.start([*headers, *note_headers([accepted])])
                with gateway.responses.running(run):
                    await run.write(writer, events)
            await writer.end()
            return
        async with cancel_on_disconnect(receive), AsyncExitStack() as stack:
            accepted, events = await _admitted(stack, llm, task)
            run = task.run(accepted)
            await run.collect(events)
        headers = [*headers, *note_headers([accepted])]
        await send_response(send, 200, encode(run.response), headers=headers)


async def _understood(request: ResponseRequest, gateway: Gateway, model: ModelInfo) -> _Task:
    """Reads what the request refers to and turns it into a generation.

    Raises:
        AntiphonError: it cannot be served.
    """
    if request.input is None:
        raise InvalidArgument("input is required", reason="MISSING_FIELD", field="input")
    storage = gateway.storage
    keeps = _keeps(request, storage)
    history: list[items.Item] = []
    if request.previous_response_id is not None:
        history = await _history(request.previous_response_id, storage)
    if isinstance(request.input, str):
        given: list[items.Item] = [items.MessageItem(role="user", content=request.input)]
        paths = ["input"]
    else:
        found = items.decode_items(request.input, "input")
        paths = [f"input[{index}]" for index in range(len(found))]
        given = await _resolved(found, paths, storage)
    if not (given or history):
        raise InvalidArgument("input needs at least one item", field="input")
    conversation = conversation_of(request.instructions, history, given, paths, model)
    response_id = new_object_id("resp_")
    timeout = gateway.settings.limits.request_seconds
    return _Task(
        request=request,
        generate=response_request(request, conversation.messages, model, timeout),
        sources=conversation.sources,
        given=items.complete_items(given, response_id),
        response_id=response_id,
        storage=storage if keeps else None,
    )


def _keeps(request: ResponseRequest, storage: Storage | None) -> bool:
    """Whether the response is to be kept.

    Raises:
        InvalidArgument: that is asked for, and there is nowhere to keep it.
        Unavailable: STORE_UNAVAILABLE.
    """
    if request.store is False:
        return False
    if storage is not None:
        storage.store.require_available()
        return True
    if request.store:
        raise InvalidArgument(
            "store: this deployment keeps nothing: it has no directory in [gateway.store]",
            reason="UNSUPPORTED_OPTION",
            field="store",
            allowed=("false",),
        )
    return False


async def _history(response_id: str, storage: Storage | None) -> list[items.Item]:
    """The items of a kept response and of all before it."""
    if storage is None:
        raise NotFound(f"{PREVIOUS}: this deployment keeps no responses", field=PREVIOUS)
    chain = await storage.responses.chain(current_principal().tenant, response_id, PREVIOUS)
    return [item for kept in chain for item in _items_of(kept)]


def _items_of(kept: StoredResponse) -> list[items.Item]:
    return [*items.decode_input(kept.input), *items.decode_output(kept.response)]


async def _resolved(
    found: list[items.InputItem], paths: list[str], storage: Storage | None
) -> list[items.Item]:
    """The items, those that are referred to in place of the references.

    Raises:
        NotFound: naming the reference whose item the tenant does not have.
    """
    given: list[items.Item] = []
    known: dict[str, Mapping[str, items.Item]] = {}
    for item, path in zip(found, paths, strict=True):
        if not isinstance(item, items.ItemReference):
            given.append(item)
            continue
        field = f"{path}.id"
        response_id = items.response_of_item(item.id)
        if storage is not None and response_id not in known:
            tenant = current_principal().tenant
            kept = await storage.responses.get(tenant, response_id, field)
            known[response_id] = {str(other.id): other for other in _items_of(kept)}
        referred = known.get(response_id, {}).get(item.id)
        if referred is None:
            raise NotFound(f"{field}: no item {item.id[:64]!r}", field=field)
        given.append(referred)
    return given


async def _admitted(
    stack: AsyncExitStack, llm: LlmClient, task: _Task
) -> tuple[Accepted, GenerationStream]:
    """Begins the generation, without the oldest items where it would be too long and may be cut.

    Raises:
        AntiphonError: it was refused.
    """
    with _blaming(task.sources):
        try:
            return await _begun(stack, llm, task.generate)
        except InvalidArgument as error:
            is_too_long = error.reason == "CONTEXT_LENGTH_EXCEEDED"
            if task.request.truncation != "auto" or not is_too_long:
                raise
    generate, dropped = await _truncated(llm, task.generate)
    accepted, events = await _begun(stack, llm, generate)
    note = f"truncation dropped the {dropped} oldest messages"
    return replace(accepted, notes=(*accepted.notes, note)), events


async def _begun(
    stack: AsyncExitStack, llm: LlmClient, generate: GenerateRequest
) -> tuple[Accepted, GenerationStream]:
    """A generation that lasts as long as the stack; a refused one is over at once."""
    async with AsyncExitStack() as attempt:
        events = await attempt.enter_async_context(llm.generate(generate))
        accepted = await first_event(events)
        await stack.enter_async_context(attempt.pop_all())
        return accepted, events


async def _truncated(llm: LlmClient, generate: GenerateRequest) -> tuple[GenerateRequest, int]:
    """The generation with as few of the oldest messages left out as makes it fit, and how many.

    Room is left for the output: what the request asks for, else an eighth of the context.
    """
    chat = generate.input
    assert isinstance(chat, ChatInput)

    async def fits(messages: tuple[Message, ...]) -> bool:
        tokens = await llm.tokenize(replace(chat, messages=messages), model=generate.model)
        room = generate.stop.max_tokens or max(1, tokens.context_limit // 8)
        return len(tokens.ids) + room <= tokens.context_limit

    left = await shortened(chat.messages, fits)
    return replace(generate, input=replace(chat, messages=left)), len(chat.messages) - len(left)


@contextmanager
def _blaming(sources: tuple[str, ...]) -> Iterator[None]:
    """Puts the request's item in place of the message that the service blames."""
    try:
        yield
    except AntiphonError as error:
        match = _MESSAGE.match(error.field)
        if match is not None and int(match.group(1)) < len(sources):
            source = sources[int(match.group(1))]
            error.message = error.message.replace(error.field, source)
            error.metadata["field"] = source
        raise
