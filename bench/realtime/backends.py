"""Scripted llm, voice and recogniser in a process of their own: ``python -m
bench.realtime.backends``. Prints the target it serves on."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop
from antiphon.vocoder.v1 import recognition_service_pb2 as rec
from antiphon_core.logs import configure_logging

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "rpc" / "realtime"))

from many_streams import CREDIT_PIECE  # pyright: ignore[reportMissingImports]
from realtime_fakes import (  # pyright: ignore[reportMissingImports]
    Ear,
    ScriptedBackends,
    ScriptedRecognizer,
)


class QuickRecognizer(ScriptedRecognizer):
    """Hears a shared call's message at once. A task and a queue for each stream, as the script has
    elsewhere, take nearly as much of a core as the gateway that is measured."""

    async def StreamingRecognizeMany(
        self, requests: Any, context: Any
    ) -> AsyncIterator[rec.StreamingRecognizeManyResponse]:
        ears: dict[str, Ear] = {}
        heard: Counter[str] = Counter()
        async for request in requests:
            response = rec.StreamingRecognizeManyResponse()
            for name, data in zip(request.stream_ids, request.audio, strict=True):
                if name in ears:
                    await self._hear(name, ears[name], data, response)
                    heard[name] += len(data)
                    if heard[name] >= CREDIT_PIECE:
                        response.credit_stream_ids.append(name)
                        response.credit_bytes.append(heard.pop(name))
            for action in request.actions:
                await self._act(action, ears, response)
            if response.events or response.credit_stream_ids:
                yield response

    async def _hear(
        self, name: str, ear: Ear, data: bytes, response: rec.StreamingRecognizeManyResponse
    ) -> None:
        for event in ear.hear(data):
            response.events.add(stream_id=name, message=event)
            if event.HasField("speech_stopped"):
                final = await self._final(ear, event.speech_stopped.utterance, "")
                response.events.add(stream_id=name, message=final)

    async def _act(
        self,
        action: rec.StreamAction,
        ears: dict[str, Ear],
        response: rec.StreamingRecognizeManyResponse,
    ) -> None:
        name, kind = action.stream_id, action.WhichOneof("action")
        if kind == "start":
            ears[name] = Ear()
            ears[name].configure(action.start.config)
            ready = rec.RecognitionReady(model="tiny", detector="loudness")
            response.events.add(stream_id=name, message=rec.StreamingRecognizeResponse(ready=ready))
        elif kind != "message":
            ears.pop(name, None)
            if kind == "end_input":
                finished = rec.StreamingRecognizeResponse(finished=rec.RecognitionFinished())
                response.events.add(stream_id=name, message=finished)
        elif action.message.HasField("turn_detection"):
            ears[name].tune(action.message.turn_detection)
        elif action.message.HasField("flush"):
            ear = ears[name]
            final = await self._final(ear, ear.next_utterance(), action.message.flush.tag)
            response.events.add(stream_id=name, message=final)
        else:
            await self._hear(name, ears[name], action.message.audio, response)


async def main() -> None:
    """Serves until it is ended."""
    configure_logging("fakes", level="error")
    backends = ScriptedBackends(QuickRecognizer)
    print(await backends.start(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
