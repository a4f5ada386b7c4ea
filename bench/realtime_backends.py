"""Instant llm, vocoder and recogniser on one port: ``python -m bench.realtime_backends PORT``.

The recogniser hears a turn begin or end wherever the marker lies in its audio.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from antiphon.llm.v1 import generate_pb2 as gen
from antiphon.llm.v1 import llm_service_pb2 as llm
from antiphon.llm.v1 import llm_service_pb2_grpc
from antiphon.vocoder.v1 import recognition_service_pb2 as rec
from antiphon.vocoder.v1 import recognition_service_pb2_grpc, vocoder_service_pb2_grpc
from antiphon.vocoder.v1 import vocoder_service_pb2 as voc
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.node import NodeAdminServicer
from antiphon_core.node_types import ServerInfo
from antiphon_core.rpc.server import RpcServer

MARKER = b"\x7f\x11\x7f\x22\x7f\x33\x7f\x44"
BYTES_PER_MS = 48


class Llm(llm_service_pb2_grpc.LlmServiceServicer):
    """Serves one model that nobody asks."""

    async def ListModels(self, request: Any, context: Any) -> llm.ListModelsResponse:
        """One chat model."""
        text = [gen.MODALITY_TEXT]
        model = llm.Model(
            id="instant",
            context_limit=4096,
            chat=True,
            input_modalities=text,
            output_modalities=text,
        )
        return llm.ListModelsResponse(models=[model])


class Vocoder(vocoder_service_pb2_grpc.VocoderServiceServicer):
    """Has one voice that says nothing."""

    async def ListVoices(self, request: Any, context: Any) -> voc.ListVoicesResponse:
        """One voice."""
        return voc.ListVoicesResponse(voices=[voc.Voice(id="instant", is_default=True)])


class Recognizer(recognition_service_pb2_grpc.RecognitionServiceServicer):
    """Answers each marker at once."""

    async def StreamingRecognize(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[rec.StreamingRecognizeResponse]:
        """Turn events at the markers, and an empty final of each turn."""
        position = utterance = 0
        is_speaking = False
        async for request in request_iterator:
            if request.HasField("config"):
                ready = rec.RecognitionReady(model="instant", detector="marker")
                yield rec.StreamingRecognizeResponse(ready=ready)
            audio = request.audio
            place = audio.find(MARKER)
            while place >= 0:
                at = (position + place) // BYTES_PER_MS
                if is_speaking:
                    stopped = rec.SpeechStopped(utterance=utterance, at_ms=at)
                    yield rec.StreamingRecognizeResponse(speech_stopped=stopped)
                    final = rec.FinalTranscript(utterance=utterance)
                    yield rec.StreamingRecognizeResponse(final=final)
                else:
                    utterance += 1
                    started = rec.SpeechStarted(utterance=utterance, at_ms=at)
                    yield rec.StreamingRecognizeResponse(speech_started=started)
                is_speaking = not is_speaking
                place = audio.find(MARKER, place + 1)
            position += len(audio)
        yield rec.StreamingRecognizeResponse(finished=rec.RecognitionFinished())

    async def ListRecognizers(self, request: Any, context: Any) -> rec.ListRecognizersResponse:
        """One recogniser."""
        return rec.ListRecognizersResponse(recognizers=[rec.Recognizer(id="instant")])


async def main(port: int) -> None:
    """Serves until the process is ended."""
    lifecycle = Lifecycle(boot_id="instant")
    node = NodeAdminServicer(lifecycle, lambda: ServerInfo("instant", "0"))
    server = RpcServer(service="instant", bind=f"127.0.0.1:{port}", lifecycle=lifecycle, node=node)
    add_llm = llm_service_pb2_grpc.add_LlmServiceServicer_to_server
    server.add(add_llm, Llm(), "antiphon.llm.v1.LlmService")
    add_vocoder = vocoder_service_pb2_grpc.add_VocoderServiceServicer_to_server
    server.add(add_vocoder, Vocoder(), "antiphon.vocoder.v1.VocoderService")
    add_recognizer = recognition_service_pb2_grpc.add_RecognitionServiceServicer_to_server
    server.add(add_recognizer, Recognizer(), "antiphon.vocoder.v1.RecognitionService")
    lifecycle.booting("loading")
    await server.start()
    lifecycle.ready()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
