"""Embeddings of texts and relevance scores of pairs, read off prompts by the engine."""

from __future__ import annotations

import asyncio
import math
import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from antiphon_core.errors import FailedPrecondition, ResourceExhausted

from antiphon_llm.config import LlmSettings
from antiphon_llm.front import validation
from antiphon_llm.front.encoding import PromptEncoder
from antiphon_llm.front.pairs import PairPrompts
from antiphon_llm.front.requests import RequestScope
from antiphon_llm.messages import Hello

_RETRY_SECONDS = 0.05


class Reads(Protocol):
    """The engine's side of one prompt."""

    async def read(
        self, prompt_ids: list[int], scope: RequestScope, *, readout: str, cache: bool
    ) -> list[float]:
        """The readout's numbers of one prompt; a cancelled caller cancels it there."""
        ...


@dataclass(frozen=True)
class Scores:
    """Relevance of pairs, in their order."""

    values: list[float]
    prompt_tokens: int
    method: str
    """classifier, yes_no or embedding."""


class Vectors:
    """Embeds and scores with one model.

    How pairs are scored follows from the model. A *classifier* has one label, whose logit goes
    through a sigmoid; *yes_no* is the probability of yes against no behind a prompt that asks;
    any other model compares two *embedding* vectors by their cosine.

    Args:
        encoder: of the model.
        engine: where prompts are read.
        hello: facts of the built model.
        pairs: makes one prompt of two texts.
        settings: of the service.
    """

    def __init__(
        self,
        encoder: PromptEncoder,
        engine: Reads,
        hello: Hello,
        pairs: PairPrompts,
        settings: LlmSettings,
    ) -> None:
        self._encoder = encoder
        self._engine = engine
        self._hello = hello
        self._pairs = pairs
        # A second set of rows waits, so that no step runs short while answers are on their way;
        # more would only fill the queue that others share.
        self._turns = 2 * settings.resolved("max_rows")
        self._default_deadline = settings.default_deadline_s

    async def embed(
        self, inputs: Sequence[str | Sequence[int]], dimensions: int, scope: RequestScope
    ) -> tuple[list[list[float]], int]:
        """One unit vector per input, and the tokens of all.

        Raises:
            InvalidArgument: an input or ``dimensions`` is wrong.
        """
        hello = self._hello
        validation.check_embedding_inputs(
            inputs, dimensions, hello.vocab_size, hello.embedding_size
        )
        texts = [item for item in inputs if isinstance(item, str)]
        encoded = iter(await self._encoder.encode_texts(texts))
        prompts = [next(encoded) if isinstance(item, str) else list(item) for item in inputs]
        vectors = await self._read_all(prompts, scope, "inputs")
        return [shortened(vector, dimensions) for vector in vectors], sum(map(len, prompts))

    async def score(self, pairs: Sequence[tuple[str, str]], scope: RequestScope) -> Scores:
        """How well each document answers its query, by what the model is made for.

        Raises:
            InvalidArgument: a text is empty or too long.
            FailedPrecondition: the model classifies, but into other labels than one.
        """
        validation.check_pairs(pairs)
        if not self._hello.labels:
            return await self._compare(pairs, scope)
        if self._hello.labels > 2 or (self._hello.labels == 2 and not self._hello.generates):
            raise FailedPrecondition(
                f"the model classifies into {self._hello.labels} labels; scoring takes one",
                reason="UNSUPPORTED_OPTION",
                field="model",
            )
        prompts = await self._encoder.encode_pairs(self._pairs, pairs)
        logits = await self._read_all(prompts, scope, "pairs", readout="score", cache=True)
        values = [_sigmoid(item[-1] - (item[0] if len(item) == 2 else 0.0)) for item in logits]
        method = "classifier" if self._hello.labels == 1 else "yes_no"
        return Scores(values, sum(map(len, prompts)), method)

    async def _compare(self, pairs: Sequence[tuple[str, str]], scope: RequestScope) -> Scores:
        """Cosines; a text that stands in many pairs is embedded and counted once."""
        places: dict[str, int] = {}
        for place, pair in enumerate(pairs):
            for text in pair:
                places.setdefault(text, place)
        prompts = await self._encoder.encode_texts(list(places))
        vectors = await self._read_all(prompts, scope, "pairs", places=list(places.values()))
        known = dict(zip(places, vectors, strict=True))
        values = [
            math.fsum(map(operator.mul, known[query], known[document])) for query, document in pairs
        ]
        return Scores(values, sum(map(len, prompts)), "embedding")

    async def _read_all(
        self,
        prompts: Sequence[list[int]],
        scope: RequestScope,
        field: str,
        *,
        readout: str = "embedding",
        cache: bool = False,
        places: Sequence[int] | None = None,
    ) -> list[list[float]]:
        limit = self._hello.context_limit
        for place, prompt in enumerate(prompts):
            where = f"{field}[{place if places is None else places[place]}]"
            validation.check_read_length(len(prompt), limit, where)
        latest = time.time() + self._default_deadline
        bounded = replace(scope, deadline=min(scope.deadline or latest, latest))
        turns = asyncio.Semaphore(self._turns)
        answers: list[list[float]] = [[] for _ in prompts]

        async def read(place: int) -> None:
            async with turns:
                answers[place] = await self._read(
                    prompts[place], bounded, readout, cache, waits=place > 0
                )

        try:
            async with asyncio.TaskGroup() as group:
                for place in range(len(prompts)):
                    group.create_task(read(place))
        except* Exception as failures:
            # Where one prompt fails the request does; the others were cancelled for it.
            first = failures.exceptions[0]
            raise first from None
        return answers

    async def _read(
        self, prompt: list[int], scope: RequestScope, readout: str, cache: bool, *, waits: bool
    ) -> list[float]:
        """One prompt. Full queues refuse a request as a whole by its first prompt; later ones
        wait for room until the deadline, for their request was admitted."""
        while True:
            try:
                return await self._engine.read(prompt, scope, readout=readout, cache=cache)
            except ResourceExhausted as full:
                if not waits or full.reason != "QUEUE_FULL" or time.time() >= scope.deadline:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)


def shortened(vector: list[float], dimensions: int) -> list[float]:
    """The leading dimensions, brought back to unit length."""
    if not dimensions or dimensions >= len(vector):
        return vector
    kept = vector[:dimensions]
    length = sum(value * value for value in kept) ** 0.5
    return [value / length for value in kept] if length else kept


def _sigmoid(logit: float) -> float:
    """Stable for any logit."""
    if logit >= 0:
        return 1.0 / (1.0 + math.exp(-logit))
    grown = math.exp(logit)
    return grown / (1.0 + grown)
