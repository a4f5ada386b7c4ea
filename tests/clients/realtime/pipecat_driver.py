"""Pipecat's OpenAIRealtimeLLMService in a pipeline. Prints what it saw as JSON.

python pipecat_driver.py <http address> <model> <question.wav>
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any

from loguru import logger
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMRunFrame,
    LLMUpdateSettingsFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner
from speech import RATE, Microphone, question

LIMIT_S = 100
STORY = "Tell me a very long story about a fox, a raven and a wolf."
KINDS = (
    *(ErrorFrame, InterruptionFrame, TranscriptionFrame),
    *(TTSAudioRawFrame, TTSStoppedFrame, TTSTextFrame),
)


class Seen(BaseObserver):
    """Counts the frames that the service pushes."""

    def __init__(self, service: OpenAIRealtimeLLMService) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.audio = 0
        self.text = ""
        self.transcripts: list[str] = []
        self.errors: list[str] = []
        self._service = service
        self._ids: set[int] = set()

    async def on_push_frame(self, data: FramePushed) -> None:
        frame = data.frame
        if not isinstance(frame, KINDS) or frame.id in self._ids:
            return
        self._ids.add(frame.id)
        self._note(frame)

    def _note(self, frame: Frame) -> None:
        self.counts[type(frame).__name__] += 1
        if isinstance(frame, TTSAudioRawFrame):
            self.audio += len(frame.audio)
        elif isinstance(frame, TTSTextFrame):
            self.text += frame.text
        elif isinstance(frame, TranscriptionFrame):
            self.transcripts.append(frame.text)
        elif isinstance(frame, ErrorFrame):
            self.errors.append(frame.error)

    async def until(self, name: str, count: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self.counts[name] < count:
                await asyncio.sleep(0.02)


def properties(**changes: Any) -> events.SessionProperties:
    """The session: default (semantic) turn detection of the service's users."""
    fields: dict[str, Any] = {
        "instructions": "Be brief.",
        "max_output_tokens": 24,
        "audio": events.AudioConfiguration(
            input=events.AudioInput(
                transcription=events.InputAudioTranscription(model="whisper-1"),
                turn_detection=events.SemanticTurnDetection(eagerness="high"),
            )
        ),
        **changes,
    }
    return events.SessionProperties(**fields)


def tools() -> ToolsSchema:
    """One function."""
    city = {"city": {"type": "string", "enum": ["Paris", "Rome"]}}
    schema = FunctionSchema("weather", "Tells the weather of a city.", city, ["city"])
    return ToolsSchema(standard_tools=[schema])


class Conversation:
    """A pipeline and what its user does."""

    def __init__(self, address: str, model: str) -> None:
        settings = OpenAIRealtimeLLMService.Settings(
            model=model, session_properties=properties(tool_choice="none")
        )
        url = address.replace("http", "ws", 1) + "/v1/realtime"
        self.service = OpenAIRealtimeLLMService(api_key="unused", base_url=url, settings=settings)
        self.service.register_function("weather", self._weather)
        self.context = LLMContext([{"role": "user", "content": "Say hello."}], tools())
        pair = LLMContextAggregatorPair(self.context)
        self.seen = Seen(self.service)
        self.worker = PipelineWorker(
            Pipeline([pair.user(), self.service, pair.assistant()]),
            params=PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE),
            observers=[self.seen],
            cancel_on_idle_timeout=False,
            enable_rtvi=False,
        )
        self.called: list[dict[str, Any]] = []

    async def _weather(self, params: Any) -> None:
        self.called.append(dict(params.arguments))
        await self.set(tool_choice="none")
        await asyncio.sleep(0.3)
        await params.result_callback({"weather": "sunny"})

    async def set(self, **changes: Any) -> None:
        """Changes the session."""
        delta = OpenAIRealtimeLLMService.Settings(session_properties=properties(**changes))
        await self.worker.queue_frame(LLMUpdateSettingsFrame(delta=delta))

    async def ask(self, text: str) -> None:
        """A written turn."""
        item = events.ConversationItem(
            type="message",
            role="user",
            content=[events.ItemContent(type="input_text", text=text)],
        )
        await self.service.send_client_event(events.ConversationItemCreateEvent(item=item))
        await self.service.send_client_event(events.ResponseCreateEvent())

    async def idle(self) -> None:
        """Waits until neither a response nor one that is owed is under way."""
        calm = 0
        while calm < 10:
            await asyncio.sleep(0.05)
            calm = 0 if self.service._response_active else calm + 1

    async def answered(self, heard: int) -> None:
        """Waits for a reply with audio beyond so many frames, and for its end."""
        await self.seen.until("TTSAudioRawFrame", heard + 1)
        await self.idle()

    async def hear(self, frame: bytes) -> None:
        """Microphone audio."""
        await self.worker.queue_frame(InputAudioRawFrame(frame, RATE, 1))

    async def run(self, pcm: bytes) -> dict[str, Any]:
        """Greeting, spoken turn, tool call, interrupted story, reconnection."""
        seen, marks = self.seen, {}
        await self.worker.queue_frame(LLMRunFrame())
        await seen.until("TTSStoppedFrame", 1)
        async with Microphone(self.hear) as microphone:
            microphone.say(pcm)
            await seen.until("TTSStoppedFrame", 2)
            marks["spoken"] = seen.text
            await self.set(tool_choice="required", max_output_tokens=200)
            await asyncio.sleep(0.3)
            await self.ask("How is the weather in Paris?")
            await seen.until("TTSStoppedFrame", 3)
            await self.idle()
            await self.set(tool_choice="none", max_output_tokens=400)
            await asyncio.sleep(0.3)
            heard = seen.counts["TTSAudioRawFrame"]
            await self.ask(STORY)
            await seen.until("TTSAudioRawFrame", heard + 2)
            cuts = seen.counts["InterruptionFrame"]
            microphone.say(pcm)
            await seen.until("InterruptionFrame", cuts + 1)
            await self.set(tool_choice="none")
            await self.answered(seen.counts["TTSAudioRawFrame"])
        await self.service.reset_conversation()
        heard = seen.counts["TTSAudioRawFrame"]
        await self.worker.queue_frame(LLMRunFrame())
        await self.answered(heard)
        await self.worker.queue_frame(EndFrame())
        return marks


async def main(address: str, model: str, file: str) -> dict[str, Any]:
    conversation = Conversation(address, model)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(conversation.worker)
    running = asyncio.create_task(runner.run())
    problem = ""
    marks: dict[str, Any] = {}
    try:
        marks = await conversation.run(question(file))
        await asyncio.wait_for(running, LIMIT_S)
    except TimeoutError as error:
        problem = repr(error)
        await conversation.worker.cancel()
    seen = conversation.seen
    return {
        "marks": marks,
        "counts": seen.counts,
        "audio": seen.audio,
        "text": seen.text,
        "transcripts": seen.transcripts,
        "errors": seen.errors,
        "called": conversation.called,
        "problem": problem,
    }


if __name__ == "__main__":
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
