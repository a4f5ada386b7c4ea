"""All backends of one gateway, and what is asked of each kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Self

import grpc.aio
from antiphon_core.rpc.channel import open_channel

from antiphon_gateway.clients.adapters import AdapterClient
from antiphon_gateway.clients.llm import GenerationStream, LlmBackend
from antiphon_gateway.clients.monitor import BackendMonitor
from antiphon_gateway.clients.pool import Client, Member, Pool, Served, show_states
from antiphon_gateway.clients.recognition import (
    FileRecognitionStream,
    RecognitionClient,
    RecognitionStream,
)
from antiphon_gateway.clients.speech import SpeechClient, SpeechStream
from antiphon_gateway.clients.voices import VoiceLibrary
from antiphon_gateway.config import GatewaySettings
from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.domain.generation import ChatInput, GenerateRequest, Tokenized
from antiphon_gateway.domain.recognition import RecognitionConfig, Recognizer
from antiphon_gateway.domain.speech import SpeechConfig, Voice
from antiphon_gateway.identity.principal import current_principal
from antiphon_gateway.names import (
    resolve_listed_voice,
    resolve_model,
    resolve_recognizer,
    resolve_speech_model,
    resolve_voice,
    visible_models,
    visible_voices,
)
from antiphon_gateway.quota.metering import metered, read_metered, require_audio


class LlmClient:
    """The language models of all llm services."""

    def __init__(self, pool: Pool[LlmBackend, ModelInfo], default_model: str) -> None:
        self.pool = pool
        self._default = default_model

    def resolve(self, name: str) -> ModelInfo:
        """The served model of a name, among those that the request's key may use.

        Raises:
            Unavailable: no llm service is ready.
            NotFound: MODEL_NOT_FOUND.
        """
        self.pool.require_ready()
        principal = current_principal()
        allowed = visible_models(self.pool.served, principal)
        return resolve_model(name, allowed, self._default if principal.models is None else "")

    def generate(self, request: GenerateRequest) -> GenerationStream:
        """Starts a generation: ``async with llm.generate(request) as events``.

        Raises:
            Unavailable: no llm service is ready; other errors come on entering and iterating.
        """
        return metered(request, lambda given: self.pool.choose(given.model).generate(given))

    async def tokenize(
        self, source: ChatInput | str, *, model: str, omit_special_tokens: bool = False
    ) -> Tokenized:
        """Renders and tokenises exactly as a generation would."""
        backend = self.pool.choose(model)
        return await backend.tokenize(source, model=model, omit_special_tokens=omit_special_tokens)

    async def detokenize(self, ids: Sequence[int], *, model: str) -> str:
        """The text of token ids."""
        return await self.pool.choose(model).detokenize(ids, model=model)

    async def embed(
        self,
        inputs: Sequence[str | Sequence[int]],
        *,
        model: str,
        dimensions: int,
        timeout: float | None,
    ) -> tuple[list[Sequence[float]], int]:
        """See ``LlmBackend.embed``; raises ResourceExhausted where a quota refuses."""
        backend = self.pool.choose(model)
        async with read_metered(model, inputs) as used:
            vectors, used.prompt_tokens = await backend.embed(
                inputs, model=model, dimensions=dimensions, timeout=timeout
            )
        return vectors, used.prompt_tokens

    async def score(
        self, pairs: Sequence[tuple[str, str]], *, model: str, timeout: float | None
    ) -> tuple[list[float], int, str]:
        """See ``LlmBackend.score``; raises ResourceExhausted where a quota refuses."""
        backend = self.pool.choose(model)
        async with read_metered(model, [text for pair in pairs for text in pair]) as used:
            scores, used.prompt_tokens, method = await backend.score(
                pairs, model=model, timeout=timeout
            )
        return scores, used.prompt_tokens, method


class VocoderClient:
    """The voices of all vocoder services."""

    def __init__(
        self,
        pool: Pool[SpeechClient, Voice],
        voice_aliases: Mapping[str, str],
        model_aliases: Mapping[str, str],
    ) -> None:
        self.pool = pool
        self.voice_aliases = voice_aliases
        self.model_aliases = model_aliases

    def resolve_voice(self, name: str) -> str:
        """The id of a voice name; empty is the default voice, or the first that the key may use.

        Raises:
            Unavailable: no vocoder service is ready.
            InvalidArgument: VOICE_NOT_FOUND.
        """
        self.pool.require_ready()
        principal = current_principal()
        voices = visible_voices(self.pool.served, principal)
        if principal.voices is not None:
            return resolve_listed_voice(name, voices, self.voice_aliases)
        return resolve_voice(name, voices, self.voice_aliases) if name else ""

    def resolve_model(self, name: str) -> str:
        """The id of a speech model name; empty leaves the choice to the voice.

        Raises:
            Unavailable: no vocoder service is ready.
            NotFound: MODEL_NOT_FOUND.
        """
        self.pool.require_ready()
        return resolve_speech_model(name, self.pool.served, self.model_aliases)

    def stream(self, config: SpeechConfig) -> SpeechStream:
        """Opens a speech stream: ``async with vocoder.stream(config) as stream``.

        Raises:
            Unavailable: no vocoder service is ready; other errors come while iterating.
            ResourceExhausted: QUOTA_SPENT.
        """
        require_audio()
        return self.pool.choose(config.voice).stream(config)


class RecognizerClient:
    """The recognisers."""

    def __init__(
        self, pool: Pool[RecognitionClient, Recognizer], model_aliases: Mapping[str, str]
    ) -> None:
        self.pool = pool
        self.model_aliases = model_aliases

    def resolve(self, name: str) -> str:
        """The id of a recogniser name; empty is the default one.

        Raises:
            Unavailable: no recogniser is ready.
            NotFound: MODEL_NOT_FOUND.
        """
        self.pool.require_ready()
        return resolve_recognizer(name, self.pool.served, self.model_aliases)

    def stream(self, config: RecognitionConfig) -> RecognitionStream:
        """Opens live recognition: ``async with recognition.stream(config) as stream``.

        Raises:
            Unavailable: no recogniser is ready; other errors come while iterating.
            ResourceExhausted: QUOTA_SPENT.
        """
        require_audio()
        return self.pool.choose(config.model).stream(config)

    def recognize(self, config: RecognitionConfig) -> FileRecognitionStream:
        """Opens file recognition: ``async with recognition.recognize(config) as stream``.

        Raises:
            Unavailable: no recogniser is ready; other errors come while iterating.
            ResourceExhausted: QUOTA_SPENT.
        """
        require_audio()
        return self.pool.choose(config.model).recognize(config)


class Backends:
    """Channels, clients and status of every backend. ``start`` before use, ``close`` after."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._tasks: list[asyncio.Task[None]] = []
        egress = settings.egress_target
        llm: Pool[LlmBackend, ModelInfo] = Pool()
        for target in settings.llm_targets:
            backend = LlmBackend(self._channel(egress or target), multiplexed=not egress)
            self._join(llm, "llm", target, backend, backend.list_models)
        vocoder: Pool[SpeechClient, Voice] = Pool()
        for target in settings.vocoder_targets:
            speech = SpeechClient(self._channel(egress or target), target if egress else "")
            self._join(vocoder, "vocoder", target, speech, speech.list_voices)
        recognition: Pool[RecognitionClient, Recognizer] = Pool()
        recogniser = RecognitionClient(
            self._channel(egress or settings.recogniser_target), multiplexed=not egress
        )
        self._join(
            recognition,
            "recognition",
            settings.recogniser_target,
            recogniser,
            recogniser.list_recognizers,
        )
        for pool in (llm, vocoder, recognition):
            show_states(pool)
        self.llm = LlmClient(llm, settings.default_model)
        self.adapters = AdapterClient(llm, balanced=bool(egress))
        self.vocoder = VocoderClient(vocoder, settings.voice_aliases, settings.speech_model_aliases)
        self.library = VoiceLibrary(vocoder)
        self.recognition = RecognizerClient(recognition, settings.recognition_model_aliases)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def models(self) -> tuple[ModelInfo, ...]:
        """Language models that are served at this moment, from the cached catalog."""
        return tuple(visible_models(self.llm.pool.served, current_principal()))

    @property
    def voices(self) -> tuple[Voice, ...]:
        """Voices that are served at this moment, from the cached catalog."""
        return tuple(visible_voices(self.vocoder.pool.served, current_principal()))

    @property
    def recognizers(self) -> tuple[Recognizer, ...]:
        """Recognisers that are served at this moment, from the cached catalog."""
        return self.recognition.pool.served

    @property
    def load(self) -> float:
        """The busiest kind's share of slots in use, 0 to 1; kinds that do not say count as free."""
        told = [pool.slots for pool in (self.llm.pool, self.vocoder.pool, self.recognition.pool)]
        return max((used / total for used, total in filter(None, told)), default=0.0)

    @property
    def monitors(self) -> list[BackendMonitor]:
        """The status of every backend."""
        pools = (self.llm.pool, self.vocoder.pool, self.recognition.pool)
        return [member.monitor for pool in pools for member in pool.members]

    @property
    def missing(self) -> list[str]:
        """Why the suite is not ready, one reason per missing kind; empty when it is."""
        reasons = (self.llm.pool.reason, self.vocoder.pool.reason)
        return list(dict.fromkeys(reason for reason in reasons if reason))

    def start(self) -> None:
        """Begins to follow the backends' status; needs a running loop."""
        self._tasks = [asyncio.create_task(monitor.run()) for monitor in self.monitors]

    async def close(self) -> None:
        """Ends the monitors and closes the channels; running calls are cancelled."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        for member in (*self.llm.pool.members, *self.recognition.pool.members):
            member.client.close()
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, target: str) -> grpc.aio.Channel:
        if target not in self._channels:
            self._channels[target] = open_channel(target)
        return self._channels[target]

    def _join(
        self,
        pool: Pool[Client, Served],
        name: str,
        target: str,
        client: Client,
        load: Callable[[], Awaitable[tuple[Served, ...]]],
    ) -> None:
        async def reload() -> None:
            member.served = await load()
            member.limits = await monitor.limits()

        monitor = BackendMonitor(name, target, self._channel(target), reload)
        member = Member[Client, Served](client, monitor)
        pool.members.append(member)
