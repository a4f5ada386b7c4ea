"""Runs the recogniser streams of one session: the live one, and single items."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from antiphon_core.errors import AntiphonError
from antiphon_core.logs import get_logger
from msgspec.structs import replace

from antiphon_gateway.clients import Backends, RecognitionStream
from antiphon_gateway.domain import recognition
from antiphon_gateway.realtime import inputs
from antiphon_gateway.realtime.commands import (
    FlushRecognizer,
    OpenRecognizer,
    RecognizeAudio,
    TranscribeItem,
    TuneRecognizer,
)
from antiphon_gateway.realtime.errors import failure_of, failure_of_reason
from antiphon_gateway.realtime.events import Logprob

log = get_logger(__name__)

MAX_QUEUED_BYTES = 4 * 1024 * 1024
INPUT_IDLE = "INPUT_IDLE"

Message = RecognizeAudio | FlushRecognizer | TuneRecognizer
Report = Callable[[inputs.Input], None]


class RecognizerRunner:
    """One live recogniser stream at a time.

    Args:
        backends: the recognisers.
        report: takes what they hear.
        spawn: starts a task that lives as long as the connection at most.
    """

    def __init__(
        self,
        backends: Backends,
        report: Report,
        spawn: Callable[..., asyncio.Task[None]],
    ) -> None:
        self._backends = backends
        self._report = report
        self._spawn = spawn
        self._task: asyncio.Task[None] | None = None
        self._stream: RecognitionStream | None = None
        """None while it is opened, and once it is over."""
        self._opened = asyncio.Event()
        self._early: list[Message] = []
        """What came before the stream was open."""
        self._early_bytes = 0

    def open(self, command: OpenRecognizer) -> None:
        """Replaces the stream; what is queued for the former one is dropped."""
        if self._task is not None:
            self._task.cancel()
        self._stream = None
        self._opened.clear()
        self._early.clear()
        self._early_bytes = 0
        self._task = self._spawn(self._run(command))

    def send(self, message: Message) -> None:
        """Tells the stream, in order; never blocks."""
        stream = self._stream
        if stream is None:
            self._early.append(message)
            if isinstance(message, RecognizeAudio):
                self._early_bytes += len(message.data)
        elif isinstance(message, RecognizeAudio):
            stream.send_audio(message.data)
        elif isinstance(message, FlushRecognizer):
            stream.flush(message.tag)
        else:
            stream.set_turn_detection(message.detection)

    @property
    def has_room(self) -> bool:
        """Whether the stream keeps up."""
        stream = self._stream
        queued = self._early_bytes if stream is None else stream.queued_bytes
        return queued <= MAX_QUEUED_BYTES

    async def room(self) -> None:
        """Waits until the stream has caught up, so that a flood waits in the client's socket."""
        while not self.has_room:
            if self._stream is None:
                await self._opened.wait()
            else:
                await self._stream.room(MAX_QUEUED_BYTES)

    async def transcribe(self, command: TranscribeItem) -> None:
        """Recognises the audio of one item by itself and reports its text or its failure."""
        texts: list[str] = []
        logprobs: list[Logprob] = []
        segments: list[recognition.TranscriptSegment] = []
        try:
            async with self._backends.recognition.stream(self._resolved(command.config)) as stream:
                stream.send_audio(command.audio)
                stream.flush(command.item_id)
                stream.end_input()
                async for event in stream:
                    if isinstance(event, recognition.FinalTranscript):
                        texts.append(event.text.strip())
                        logprobs += _logprobs(event)
                        segments += event.segments
                    elif isinstance(event, recognition.UtteranceError):
                        failure = failure_of(event.error)
                        self._report(inputs.ItemTranscribed(command.item_id, "", failure))
                        return
        except AntiphonError as error:
            self._report(inputs.ItemTranscribed(command.item_id, "", failure_of(error)))
            return
        text = " ".join(text for text in texts if text)
        self._report(
            inputs.ItemTranscribed(
                command.item_id, text, logprobs=tuple(logprobs), segments=tuple(segments)
            )
        )

    async def _run(self, command: OpenRecognizer) -> None:
        epoch = command.epoch
        try:
            await asyncio.sleep(command.delay)
            async with self._backends.recognition.stream(self._resolved(command.config)) as stream:
                self._attach(stream, command.replay)
                try:
                    async for event in stream:
                        self._hear(epoch, event)
                finally:
                    if self._stream is stream:
                        self._stream = None
        except AntiphonError as error:
            idle = error.reason == INPUT_IDLE
            if not idle:
                log.warning("recognizer_failed", reason=error.reason, message=error.message)
            self._report(inputs.RecognizerFailed(epoch, failure_of(error), idle))
        else:
            failure = failure_of_reason("INTERNAL", "the recogniser ended by itself")
            self._report(inputs.RecognizerFailed(epoch, failure))

    def _attach(self, stream: RecognitionStream, replay: bytes) -> None:
        """Sends what is to be heard again and what came early; from here on the stream is told."""
        if replay:
            stream.send_audio(replay)
        self._stream = stream
        early, self._early = self._early, []
        self._early_bytes = 0
        for message in early:
            self.send(message)
        self._opened.set()

    def _hear(self, epoch: int, event: recognition.RecognitionEvent) -> None:
        if isinstance(event, recognition.SpeechStarted):
            self._report(inputs.SpeechBegan(epoch, event.utterance, event.at_ms))
        elif isinstance(event, recognition.SpeechStopped):
            self._report(inputs.SpeechEnded(epoch, event.utterance, event.at_ms, event.forced))
        elif isinstance(event, recognition.FinalTranscript):
            self._report(
                inputs.Transcript(
                    *(epoch, event.utterance, event.text, event.tag),
                    logprobs=tuple(_logprobs(event)),
                    segments=event.segments,
                )
            )
        elif isinstance(event, recognition.PartialTranscript):
            stable = event.text[: event.stable_characters]
            self._report(inputs.PartialText(epoch, event.utterance, stable))
        elif isinstance(event, recognition.UtteranceError):
            failure = failure_of(event.error)
            self._report(inputs.UtteranceFailed(epoch, event.utterance, failure, event.tag))

    def _resolved(self, config: recognition.RecognitionConfig) -> recognition.RecognitionConfig:
        return replace(config, model=self._backends.recognition.resolve(config.model))


def _logprobs(event: recognition.FinalTranscript) -> list[Logprob]:
    """Words with their log-probability, where words were asked for; as exact as recognisers are."""
    words = (word for segment in event.segments for word in segment.words)
    return [
        Logprob(
            token=word.text,
            bytes=list(word.text.encode()),
            logprob=math.log(max(word.probability, 1e-9)),
        )
        for word in words
    ]
