"""Runs the recogniser streams of one session: the live one, and single items."""

from __future__ import annotations

import asyncio
import math
from collections import deque
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


class _Messages:
    """What a stream has still to be told; appends that wait together leave as one."""

    def __init__(self) -> None:
        self._waiting: deque[Message] = deque()
        self._filled = asyncio.Event()

    def put(self, message: Message) -> None:
        """Adds a message."""
        self._waiting.append(message)
        self._filled.set()

    async def next(self) -> bytes | FlushRecognizer | TuneRecognizer:
        """The audio that waits at the front, joined, or the message that is there."""
        waiting = self._waiting
        while not waiting:
            self._filled.clear()
            await self._filled.wait()
        message = waiting.popleft()
        if not isinstance(message, RecognizeAudio):
            return message
        pieces = [message.data]
        while waiting and isinstance(following := waiting[0], RecognizeAudio):
            pieces.append(following.data)
            waiting.popleft()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


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
        self._queue = _Messages()
        self._queued_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    def open(self, command: OpenRecognizer) -> None:
        """Replaces the stream; what is queued for the former one is dropped."""
        if self._task is not None:
            self._task.cancel()
        self._queue = _Messages()
        self._queued_bytes = 0
        self._has_room.set()
        self._task = self._spawn(self._run(command, self._queue))

    def send(self, message: Message) -> None:
        """Queues a message for the stream."""
        self._queue.put(message)
        if isinstance(message, RecognizeAudio):
            self._queued_bytes += len(message.data)
            if self._queued_bytes > MAX_QUEUED_BYTES:
                self._has_room.clear()

    @property
    def has_room(self) -> bool:
        """Whether the stream keeps up."""
        return self._queued_bytes <= MAX_QUEUED_BYTES

    async def room(self) -> None:
        """Waits until the stream has caught up, so that a flood waits in the client's socket."""
        await self._has_room.wait()

    async def transcribe(self, command: TranscribeItem) -> None:
        """Recognises the audio of one item by itself and reports its text or its failure."""
        texts: list[str] = []
        logprobs: list[Logprob] = []
        try:
            async with self._backends.recognition.stream(self._resolved(command.config)) as stream:
                await stream.send_audio(command.audio)
                await stream.flush(command.item_id)
                await stream.end_input()
                async for event in stream:
                    if isinstance(event, recognition.FinalTranscript):
                        texts.append(event.text.strip())
                        logprobs += _logprobs(event)
                    elif isinstance(event, recognition.UtteranceError):
                        failure = failure_of(event.error)
                        self._report(inputs.ItemTranscribed(command.item_id, "", failure))
                        return
        except AntiphonError as error:
            self._report(inputs.ItemTranscribed(command.item_id, "", failure_of(error)))
            return
        text = " ".join(text for text in texts if text)
        self._report(inputs.ItemTranscribed(command.item_id, text, logprobs=tuple(logprobs)))

    async def _run(self, command: OpenRecognizer, queue: _Messages) -> None:
        epoch = command.epoch
        try:
            await asyncio.sleep(command.delay)
            async with self._backends.recognition.stream(self._resolved(command.config)) as stream:
                writer = asyncio.create_task(self._write(command, queue, stream))
                try:
                    async for event in stream:
                        self._hear(epoch, event)
                finally:
                    writer.cancel()
                    await asyncio.gather(writer, return_exceptions=True)
        except AntiphonError as error:
            idle = error.reason == INPUT_IDLE
            if not idle:
                log.warning("recognizer_failed", reason=error.reason, message=error.message)
            self._report(inputs.RecognizerFailed(epoch, failure_of(error), idle))
        else:
            failure = failure_of_reason("INTERNAL", "the recogniser ended by itself")
            self._report(inputs.RecognizerFailed(epoch, failure))

    async def _write(
        self, command: OpenRecognizer, queue: _Messages, stream: RecognitionStream
    ) -> None:
        try:
            if command.replay:
                await stream.send_audio(command.replay)
            while True:
                message = await queue.next()
                if isinstance(message, bytes):
                    self._queued_bytes -= len(message)
                    if self._queued_bytes <= MAX_QUEUED_BYTES:
                        self._has_room.set()
                    await stream.send_audio(message)
                elif isinstance(message, FlushRecognizer):
                    await stream.flush(message.tag)
                else:
                    await stream.set_turn_detection(message.detection)
        except AntiphonError as error:
            # The reader of the same call sees the same failure and reports it.
            log.debug("recognizer_write_failed", reason=error.reason)

    def _hear(self, epoch: int, event: recognition.RecognitionEvent) -> None:
        if isinstance(event, recognition.SpeechStarted):
            self._report(inputs.SpeechBegan(epoch, event.utterance, event.at_ms))
        elif isinstance(event, recognition.SpeechStopped):
            self._report(inputs.SpeechEnded(epoch, event.utterance, event.at_ms, event.forced))
        elif isinstance(event, recognition.FinalTranscript):
            logprobs = tuple(_logprobs(event))
            self._report(inputs.Transcript(epoch, event.utterance, event.text, event.tag, logprobs))
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
