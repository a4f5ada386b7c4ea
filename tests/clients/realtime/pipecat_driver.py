"""Pipecat's OpenAIRealtimeLLMService in a pipeline. Prints what it saw as JSON.

python pipecat_driver.py <http address> <model> <question.wav>
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
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
CALL_TOKENS = 80
"""Enough for a call or two; a model that must call begins another, which is cut."""
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


def properties() -> events.SessionProperties:
    """The session: default (semantic) turn detection of the service's users."""
    hearing = events.AudioInput(
        transcription=events.InputAudioTranscription(model="whisper-1"),
        turn_detection=events.SemanticTurnDetection(eagerness="high"),
    )
    return events.SessionProperties(
        instructions="Be brief.",
        max_output_tokens=24,
        tool_choice="none",
        audio=events.AudioConfiguration(input=hearing),
    )


def tools() -> ToolsSchema:
    """One function."""
    city = {"city": {"type": "string", "enum": ["Paris", "Rome"]}}
    schema = FunctionSchema("weather", "Tells the weather of a city.", city, ["city"])
    return ToolsSchema(standard_tools=[schema])


class Conversation:
    """A pipeline and what its user does."""

    def __init__(self, address: str, model: str) -> None:
        settings = OpenAIRealtimeLLMService.Settings(model=model, session_properties=properties())
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
        await asyncio.sleep(0.3)
        await params.result_callback({"weather": "sunny"})

    async def ask(self, text: str, **options: Any) -> None:
        """A written turn whose reply has options of its own."""
        item = events.ConversationItem(
            type="message",
            role="user",
            content=[events.ItemContent(type="input_text", text=text)],
        )
        await self.service.send_client_event(events.ConversationItemCreateEvent(item=item))
        response = events.ResponseProperties(**options)
        await self.service.send_client_event(events.ResponseCreateEvent(response=response))

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
        """Greeting, spoken turn, interrupted story, tool call, reconnection."""
        seen, marks = self.seen, {}
        await self.worker.queue_frame(LLMRunFrame())
        await self.answered(0)
        async with Microphone(self.hear) as microphone:
            heard = seen.counts["TTSAudioRawFrame"]
            microphone.say(pcm)
            await self.answered(heard)
            marks["spoken"] = seen.text
            await self.interrupt(microphone, pcm)
        # Last: a small model goes on to answer everything in the words of a tool's output.
        said = seen.counts["TTSTextFrame"]
        call = {"tool_choice": "required", "max_output_tokens": CALL_TOKENS}
        await self.ask("How is the weather in Paris?", **call)
        await seen.until("TTSTextFrame", said + 1)
        await self.idle()
        await self.service.reset_conversation()
        said = seen.counts["TTSTextFrame"]
        # As Pipecat's own example of a loaded conversation does: a run frame alone does not have
        # it answered.
        await self.service._create_response()
        await seen.until("TTSTextFrame", said + 1)
        await self.idle()
        await self.worker.queue_frame(EndFrame())
        return marks

    async def interrupt(self, microphone: Microphone, pcm: bytes) -> None:
        """A story that a question breaks off, and the answer to that."""
        seen = self.seen
        heard = seen.counts["TTSAudioRawFrame"]
        await self.ask(STORY, max_output_tokens=400)
        await seen.until("TTSAudioRawFrame", heard + 1)
        cuts = seen.counts["InterruptionFrame"]
        microphone.say(pcm)
        await seen.until("InterruptionFrame", cuts + 1)
        await self.answered(seen.counts["TTSAudioRawFrame"])


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
    except TimeoutError:
        problem = traceback.format_exc()
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
