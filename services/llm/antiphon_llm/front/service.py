"""The llm front: one object that answers every request of the service in domain terms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from antiphon_core.errors import (
    AntiphonError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.node_types import Flushed, NodeMeasures, RequestRecord, ServerInfo
from antiphon_core.request_context import current

from antiphon_llm.checkpoint import ModelSource, resolve
from antiphon_llm.config import LlmSettings
from antiphon_llm.front import validation
from antiphon_llm.front.adapters import FrontAdapters
from antiphon_llm.front.encoding import EncodedPrompt, PromptEncoder
from antiphon_llm.front.engine_client import EngineClient, WorkerFactory
from antiphon_llm.front.facts import node_measures, server_info
from antiphon_llm.front.generation import Generation, Prepared
from antiphon_llm.front.model import ModelCard, TextModel, load_text_model
from antiphon_llm.front.ranges import check_ids
from antiphon_llm.front.request_log import RequestLog
from antiphon_llm.front.requests import ChatInput, GenerationRequest, RequestScope
from antiphon_llm.front.sampling_rules import resolve_sampling
from antiphon_llm.front.scoring import scoring_of
from antiphon_llm.front.vectors import Scores, Vectors
from antiphon_llm.messages import Hello


@dataclass(frozen=True)
class _Parts:
    """What boot made."""

    text: TextModel
    encoder: PromptEncoder
    engine: EngineClient
    vectors: Vectors


class LlmFront:
    """Serves one model from one engine process.

    Args:
        settings: of the service.
        lifecycle: of this process.
        make_worker: makes the engine's worker for a model source, the bytes of its tokens, and the
            tokens that score a prompt, if any do.
        version: release of the service.
    """

    def __init__(
        self,
        settings: LlmSettings,
        lifecycle: Lifecycle,
        make_worker: Callable[
            [LlmSettings, ModelSource, list[bytes], Sequence[int]], WorkerFactory
        ],
        *,
        version: str = "",
    ) -> None:
        self._settings = settings
        self._lifecycle = lifecycle
        self._make_worker = make_worker
        self._version = version
        self._parts: _Parts | None = None
        self._engine: EngineClient | None = None
        self._card: ModelCard | None = None
        self._names: dict[str, None] = {}
        self.adapters = FrontAdapters(
            served=bool(settings.adapters_dir),
            base=lambda: self._resolve(""),
            is_model_name=lambda name: name in self._names,
            control=lambda: self._running_engine()[0].control,
        )
        self._log = RequestLog(settings.served_name or settings.model)

    # Life

    async def boot(self) -> None:
        """Finds the model, loads its text side, and starts the engine with what that says.

        Raises:
            FailedPrecondition: the model or its files cannot be used.
        """
        settings = self._settings
        self._lifecycle.booting("find model")
        source = await asyncio.to_thread(resolve, settings.model, settings.cache_dir)
        name = settings.served_name or source.name
        self._log = RequestLog(name)
        self._names = dict.fromkeys((name, *settings.aliases, source.name, name.split("/")[-1]))
        text = await asyncio.to_thread(
            load_text_model,
            source,
            settings.chat_template,
            settings.tool_parser,
            settings.reasoning_parser,
            settings.reasoning_sampling,
        )
        vocabulary = await asyncio.to_thread(text.vocabulary)
        scoring = scoring_of(text.tokenizer, source, settings)
        self._engine = EngineClient(
            self._make_worker(settings, source, vocabulary, scoring.token_ids),
            self._lifecycle,
            queue_limit=settings.resolved("queue_limit"),
            check_hello=self._check_hello,
            restore=self.adapters.restore,
        )
        hello = await self._engine.start()
        text.check(hello)
        encoder = PromptEncoder(text)
        vectors = Vectors(encoder, self._engine.reads, hello, scoring.prompts, settings)
        self._parts = _Parts(text, encoder, self._engine, vectors)
        self._card = self._make_card(name, text, hello)
        for adapter, path in settings.adapters.items():
            await self.adapters.load(adapter, path, tenant="", shared=True)

    async def close(self) -> None:
        """Ends the engine and the threads."""
        if self._engine is not None:
            await self._engine.stop()
        if self._parts is not None:
            self._parts.encoder.close()

    # Requests

    async def generate(
        self,
        request: GenerationRequest,
        scope: RequestScope,
        *,
        wake: Callable[[], None] | None = None,
    ) -> Generation:
        """Checks, renders, tokenises and submits.

        Args:
            request: as the caller sent it.
            scope: on whose behalf.
            wake: called when the generation has something to collect; None for a reader that
                iterates over ``events``.

        Raises:
            AntiphonError: the request is refused; nothing was submitted.
        """
        try:
            prepared = await self._prepare(request, scope)
            parts = self._ready()
            generation = Generation(
                prepared, parts.text.tokenizer, parts.engine, on_end=self._log.end, wake=wake
            )
            generation.start()
        except AntiphonError as error:
            self._log.refused(scope.request_id, error)
            raise
        self._log.begin(generation)
        return generation

    async def tokenize(
        self, model: str, prompt: ChatInput | str, *, omit_special_tokens: bool
    ) -> EncodedPrompt:
        """Ids exactly as ``generate`` would take them.

        Raises:
            InvalidArgument: the input is wrong.
        """
        parts = self._ready()
        card = self.card(model, current().tenant)
        validation.check_input(prompt, vocabulary_size=card.vocabulary_size)
        return await parts.encoder.encode(prompt, omit_special_tokens=omit_special_tokens)

    def detokenize(self, model: str, ids: Sequence[int]) -> str:
        """The text of ids, control tokens included.

        Raises:
            InvalidArgument: an id outside the vocabulary.
        """
        parts = self._ready()
        card = self.card(model, current().tenant)
        check_ids("ids", ids, card.vocabulary_size)
        return parts.text.tokenizer.decode(ids, skip_control=False)

    async def embed(
        self,
        model: str,
        inputs: Sequence[str | Sequence[int]],
        dimensions: int,
        scope: RequestScope,
    ) -> tuple[list[list[float]], int]:
        """See ``Vectors.embed``."""
        parts = self._ready()
        self._resolve(model)
        return await parts.vectors.embed(inputs, dimensions, scope)

    async def score(
        self, model: str, pairs: Sequence[tuple[str, str]], scope: RequestScope
    ) -> Scores:
        """See ``Vectors.score``."""
        parts = self._ready()
        self._resolve(model)
        return await parts.vectors.score(pairs, scope)

    async def stop_request(self, request_id: str) -> None:
        """Ends a live request normally, on its next token.

        Raises:
            NotFound: no such request runs.
            FailedPrecondition: it cannot be ended; says why.
        """
        await self._running_engine()[0].control.stop(self._sequences(request_id))

    async def answer_request(self, request_id: str) -> None:
        """Closes a live request's reasoning; raises as ``stop_request`` does."""
        await self._running_engine()[0].control.answer(self._sequences(request_id))

    # The engine as a whole

    async def flush_prefix_cache(self, tenant: str | None) -> Flushed:
        """Forgets one tenant's cached prefixes, or with None all; raises as ``sleep`` does."""
        engine, hello = self._running_engine()
        entries = await engine.control.flush(tenant)
        return Flushed(entries, entries * hello.entry_bytes)

    async def sleep(self, timeout: float | None) -> int:
        """Ends running work within ``timeout`` seconds, then gives memory back; how many bytes.

        Raises:
            FailedPrecondition: requests still run after that time, or a wake came between.
            Unavailable: no engine runs.
        """
        engine, _ = self._running_engine()
        return await engine.control.sleep(timeout)

    async def wake(self) -> None:
        """Undoes a sleep.

        Raises:
            ResourceExhausted: the memory is not there; the service stays asleep.
            Unavailable: no engine runs.
        """
        engine, _ = self._running_engine()
        await engine.control.wake()

    def _sequences(self, request_id: str) -> list[str]:
        generation = self._log.find(request_id)
        if generation is None:
            raise NotFound(f"no request {request_id!r} runs", field="request_id")
        return self._running_engine()[0].sequences_of.get(generation, [])

    def _running_engine(self) -> tuple[EngineClient, Hello]:
        engine = self._engine
        if engine is None or engine.hello is None:
            self._lifecycle.require_ready()
            raise _starting()
        return engine, engine.hello

    # Facts

    def card(self, model: str = "", tenant: str = "") -> ModelCard:
        """The served model by any of its names, or an adapter that the tenant may use.

        Raises:
            NotFound: another model was named.
            Unavailable: still booting.
        """
        base, _, name = model.rpartition(":")
        if model and model not in self._names and (not base or base in self._names):
            adapter = self.adapters.find(name, tenant)
            if adapter is not None:
                return adapter
            if base:
                raise NotFound(
                    f"no adapter {name!r} is loaded", reason="ADAPTER_NOT_FOUND", field="model"
                )
        return self._resolve(model)

    def measures(self) -> NodeMeasures:
        """Gauges for the node's status; what is unknown is None."""
        return node_measures(self._engine, self._card)

    def server_info(self) -> ServerInfo:
        """Versions, limits and implementations."""
        return server_info(self._settings, self._engine, self._version)

    def records(self) -> Iterator[RequestRecord]:
        """Recent and live requests, newest last."""
        return self._log.records()

    # Inside

    async def _prepare(self, request: GenerationRequest, scope: RequestScope) -> Prepared:
        parts = self._ready()
        card = self.card(request.model, scope.tenant)
        if not card.generates:
            raise InvalidArgument(
                f"{card.name} has no output head: it embeds and scores, and generates nothing",
                reason="UNSUPPORTED_OPTION",
                field="model",
            )
        validation.check_request(
            request,
            vocabulary_size=card.vocabulary_size,
            draft_depth=self._settings.draft_depth,
            speech=card.output,
        )
        encoded = await parts.encoder.encode(request.input)
        ids = encoded.ids
        output = await parts.encoder.plan(
            request, encoded.opening, whitespace=self._settings.grammar_whitespace
        )
        validation.check_length(len(ids), request.stop.max_tokens, card.context_limit)
        sampling = resolve_sampling(
            request,
            parts.text.defaults_of(output.reasoning),
            context_limit=card.context_limit,
            max_output=self._settings.max_output,
            constraint=output.constraint,
            reasoning=output.reasoning,
        )
        limit = time.time() + self._settings.default_deadline_s
        bounded = RequestScope(
            request_id=scope.request_id,
            deadline=min(scope.deadline, limit) if scope.deadline else limit,
            tenant=scope.tenant,
            interactive=scope.interactive,
            traceparent=scope.traceparent,
        )
        return Prepared(
            request,
            bounded,
            card.name,
            card.fingerprint,
            ids,
            sampling,
            output=output,
            notes=output.notes,
            adapter=card.name if card.base_model else "",
        )

    def _ready(self) -> _Parts:
        """The parts that serve requests.

        Raises:
            Unavailable: booting, restarting the engine, or draining.
        """
        self._lifecycle.require_ready()
        if self._parts is None:
            raise _starting()
        return self._parts

    def _resolve(self, model: str) -> ModelCard:
        card = self._card
        if card is None:
            raise _starting()
        if model and model not in self._names:
            raise NotFound(
                f"the model {model!r} is not served here",
                reason="MODEL_NOT_FOUND",
                field="model",
                allowed=list(self._names),
            )
        return card

    def _check_hello(self, hello: Hello) -> None:
        """At a restart the engine must still be the model that callers were told of."""
        card, parts = self._card, self._parts
        if card is None or parts is None:
            return
        parts.text.check(hello)
        if parts.text.fingerprint(hello) != card.fingerprint:
            raise FailedPrecondition("the model's files changed under the running service")

    def _make_card(self, name: str, text: TextModel, hello: Hello) -> ModelCard:
        return ModelCard(
            name=name,
            aliases=[alias for alias in self._names if alias != name],
            architecture=hello.architecture,
            context_limit=hello.context_limit,
            vocabulary_size=hello.vocab_size,
            quantisation=text.weights.quantisation,
            parameter_count=text.weights.parameter_count,
            tokenizer_fingerprint=text.tokenizer.fingerprint,
            fingerprint=text.fingerprint(hello),
            chat=text.template is not None,
            loaded_at=time.time(),
            generates=hello.generates,
            output=text.output,
        )


def _starting() -> Unavailable:
    return Unavailable("the service is starting", reason="BOOTING", retry_after=1.0)
