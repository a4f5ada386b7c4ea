"""An llm service without a model, whose answers a test scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from antiphon.llm.v1 import generate_pb2 as gen
from antiphon.llm.v1 import llm_service_pb2 as llm
from antiphon_core.errors import (
    AntiphonError,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    Unavailable,
    Unimplemented,
)
from antiphon_core.rpc.errors import to_status
from fake_adapters import AdapterCalls
from fake_calls import Calls

WORDS = ("Hello", " there", ",", " friend", " \u00e9\u4e16\U0001f600", '"\n')


@dataclass
class LlmScript:
    """How the next generations go."""

    words: tuple[str, ...] = WORDS
    delay: float = 0.0
    """Seconds before each word."""
    accept_delay: float = 0.0
    fail_before: Exception | None = None
    fail_after_words: int | None = None
    failure: Exception = field(default_factory=lambda: RuntimeError("scripted"))
    finish: str = "FINISH_REASON_STOP"
    extra_deltas: tuple[gen.GenerateDelta, ...] = ()
    end_without_terminal: bool = False
    notes: tuple[str, ...] = ()
    context_limit: int | None = None
    """Refuses chats whose text and asked-for output have more bytes."""
    usage: gen.Usage = field(default_factory=gen.Usage)
    """Counts beside the common ones."""


class FakeLlm(AdapterCalls):
    """Says the scripted words to everybody."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Calls()
        self.script = LlmScript()
        self.words_said = 0
        self.starts: list[gen.StartGenerate] = []
        self.streams = 0
        """GenerateMany calls that were opened."""
        self.break_streams = False
        """Whether the next message of a GenerateMany call is its end."""
        self.ignores_timeouts = False
        self.stream_metadata: dict[str, str] = {}
        """Of the last GenerateMany call."""
        self._outboxes: list[asyncio.Queue[gen.GenerateManyResponse | None]] = []
        self.models = [
            llm.Model(
                id="org/small-model",
                context_limit=2048,
                input_modalities=[gen.MODALITY_TEXT],
                output_modalities=[gen.MODALITY_TEXT],
                chat=True,
                fingerprint="fp_test",
                aliases=["small"],
                created_at_seconds=1_700_000_000,
            ),
            llm.Model(
                id="base-model",
                context_limit=512,
                input_modalities=[gen.MODALITY_TEXT, gen.MODALITY_IMAGE],
                output_modalities=[gen.MODALITY_TEXT],
                created_at_seconds=1_700_000_001,
            ),
        ]

    async def GenerateMany(self, requests, context) -> AsyncIterator[gen.GenerateManyResponse]:
        self.streams += 1
        self.stream_metadata = dict(context.invocation_metadata())
        outbox: asyncio.Queue[gen.GenerateManyResponse | None] = asyncio.Queue()
        self._outboxes.append(outbox)
        live: dict[str, asyncio.Task[None]] = {}

        async def read() -> None:
            async for request in requests:
                if request.WhichOneof("action") == "cancel":
                    task = live.pop(request.cancel.stream_id, None)
                    if task is not None:
                        task.cancel()
                else:
                    start = request.start
                    self.starts.append(start)
                    live[start.stream_id] = asyncio.create_task(self._start(start, outbox))
            await outbox.put(None)

        reader = asyncio.create_task(read())
        try:
            while (message := await outbox.get()) is not None:
                if self.break_streams:
                    raise Unavailable("the engine died", reason="WORKER_DIED")
                yield message
        finally:
            self._outboxes.remove(outbox)
            for task in (reader, *live.values()):
                task.cancel()

    def end_streams(self) -> None:
        """Ends every GenerateMany call in order, as a service that drains does."""
        for outbox in self._outboxes:
            outbox.put_nowait(None)

    async def _start(self, start: gen.StartGenerate, outbox: asyncio.Queue) -> None:
        """One request of a stream, as Generate would serve it."""
        self.calls.begin(start.request, start.request_id, start.traceparent)
        timed = start.HasField("timeout") and not self.ignores_timeouts
        timeout = start.timeout.ToMilliseconds() / 1000 if timed else None
        try:
            async with asyncio.timeout(timeout):
                async for response in self._answer(start.request, self.script):
                    await outbox.put(many(start.stream_id, response))
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.calls.cancelled_at.append(time.monotonic())
            raise
        except TimeoutError:
            await outbox.put(failed(start.stream_id, DeadlineExceeded("too late")))
        except AntiphonError as error:
            await outbox.put(failed(start.stream_id, error))
        except Exception:
            await outbox.put(failed(start.stream_id, Internal("the service failed")))
        finally:
            self.calls.running -= 1

    async def Generate(self, request, context) -> AsyncIterator[gen.GenerateResponse]:
        self.calls.begin(request)
        try:
            async for response in self._answer(request, self.script):
                yield response
        except (asyncio.CancelledError, GeneratorExit):
            self.calls.cancelled_at.append(time.monotonic())
            raise
        finally:
            self.calls.running -= 1

    async def _answer(self, request, script: LlmScript) -> AsyncIterator[gen.GenerateResponse]:
        if script.accept_delay:
            await asyncio.sleep(script.accept_delay)
        if script.fail_before is not None:
            raise script.fail_before
        if script.context_limit is not None:
            check_length(request, script.context_limit)
        prompt = prompt_tokens(request)
        accepted = gen.GenerateAccepted(
            request_id="r1",
            model=request.model,
            fingerprint="fp_test",
            prompt_tokens=len(prompt),
            notes=script.notes,
        )
        if request.output.HasField("prompt_logprobs"):
            accepted.prompt_logprobs.extend(
                logprob(token, request.output.prompt_logprobs) for token in prompt
            )
        yield gen.GenerateResponse(accepted=accepted)
        choices = range(request.choice_count or 1)
        for index, word in enumerate(script.words):
            if script.fail_after_words == index:
                raise script.failure
            if script.delay:
                await asyncio.sleep(script.delay)
            for choice in choices:
                yield gen.GenerateResponse(delta=self._delta(request, choice, word))
            self.words_said += 1
        for delta in script.extra_deltas:
            yield gen.GenerateResponse(delta=delta)
        if script.fail_after_words == len(script.words):
            raise script.failure
        for choice in choices:
            yield gen.GenerateResponse(
                finished=gen.ChoiceFinished(choice=choice, reason=script.finish)
            )
        if script.end_without_terminal:
            return
        usage = gen.Usage(
            prompt_tokens=len(prompt),
            cached_tokens=1,
            output_tokens=len(script.words) * len(choices),
        )
        usage.MergeFrom(script.usage)
        yield gen.GenerateResponse(completed=gen.GenerateCompleted(usage=usage))

    def _delta(self, request, choice: int, word: str) -> gen.GenerateDelta:
        delta = gen.GenerateDelta(choice=choice, text=word, token_count=1)
        if request.output.HasField("logprobs"):
            delta.logprobs.append(logprob(word.encode(), request.output.logprobs))
        return delta

    async def Tokenize(self, request, context) -> llm.TokenizeResponse:
        if request.WhichOneof("input") == "text":
            ids, rendered = list(request.text.encode()), ""
        else:
            rendered = text_of(request.chat)
            ids = list(rendered.encode())
        limit = self.script.context_limit or 2048
        return llm.TokenizeResponse(ids=ids, context_limit=limit, rendered=rendered)

    async def Detokenize(self, request, context) -> llm.DetokenizeResponse:
        if any(token > 255 for token in request.ids):
            raise InvalidArgument("ids[0] is outside the vocabulary", field="ids[0]")
        return llm.DetokenizeResponse(text=bytes(request.ids).decode("utf-8", "replace"))

    async def Embed(self, request, context) -> llm.EmbedResponse:
        if request.model != "base-model":
            raise Unimplemented("this model does not embed")
        vectors = [llm.EmbedVector(values=[0.5, -0.25]) for _ in request.inputs]
        return llm.EmbedResponse(vectors=vectors, prompt_tokens=3, model=request.model)

    async def Score(self, request, context) -> llm.ScoreResponse:
        if any(pair.document == "refuse" for pair in request.pairs):
            raise InvalidArgument("pairs[0].document is too long", field="pairs[0].document")
        scores = [len(set(pair.query) & set(pair.document)) / 10 for pair in request.pairs]
        tokens = sum(len(pair.query) + len(pair.document) for pair in request.pairs)
        return llm.ScoreResponse(
            scores=scores, prompt_tokens=tokens, model=request.model, method="yes_no"
        )

    async def ListModels(self, request, context) -> llm.ListModelsResponse:
        return llm.ListModelsResponse(models=[*self.models, *self.listed_adapters(context)])


def many(stream_id: str, response: gen.GenerateResponse) -> gen.GenerateManyResponse:
    """A response as a message of a multiplexed stream: plain text in the columns."""
    delta = response.delta
    if response.WhichOneof("event") == "delta" and {f.name for f, _ in delta.ListFields()} <= {
        "choice",
        "text",
        "token_count",
    }:
        return gen.GenerateManyResponse(
            stream_ids=[stream_id],
            choices=[delta.choice],
            texts=[delta.text],
            token_counts=[delta.token_count],
        )
    event = gen.GenerateManyEvent(stream_id=stream_id, response=response)
    return gen.GenerateManyResponse(events=[event])


def failed(stream_id: str, error: AntiphonError) -> gen.GenerateManyResponse:
    """The end of one request of a multiplexed stream."""
    event = gen.GenerateManyEvent(stream_id=stream_id, error=to_status(error))
    return gen.GenerateManyResponse(events=[event])


def text_of(chat) -> str:
    """All text of a chat."""
    return "".join(part.text for message in chat.messages for part in message.parts)


def check_length(request, limit: int) -> None:
    """Refuses as the llm service does."""
    length = len(text_of(request.chat).encode())
    if length + (request.stop.max_tokens or 1) > limit:
        raise InvalidArgument(
            f"the prompt has {length} tokens",
            reason="CONTEXT_LENGTH_EXCEEDED",
            field="stop.max_tokens" if length < limit else "input",
        )


def prompt_tokens(request) -> list[bytes]:
    """One token a byte of the prompt."""
    kind = request.WhichOneof("input")
    if kind == "text":
        return [bytes([byte]) for byte in request.text.encode()]
    if kind == "tokens":
        return [bytes([token % 256]) for token in request.tokens.ids]
    return [b"x"] * sum(len(m.parts) for m in request.chat.messages)


def logprob(token: bytes, alternatives: int) -> gen.TokenLogprob:
    return gen.TokenLogprob(
        token_id=7,
        token=token,
        logprob=-0.5,
        rank=2,
        alternatives=[
            gen.TokenAlternative(token_id=i, token=b"alt%d" % i, logprob=-1.0 - i)
            for i in range(alternatives)
        ],
    )
