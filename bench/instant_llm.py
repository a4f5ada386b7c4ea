"""An llm service without a model: ``python -m bench.instant_llm PORT``.

Every running request gets a token a step; steps follow each other as fast as the reader takes
them, or at a given pace.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator

from antiphon.llm.v1 import generate_pb2 as gen
from antiphon.llm.v1 import llm_service_pb2 as llm
from antiphon.llm.v1 import llm_service_pb2_grpc
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.node import NodeAdminServicer
from antiphon_core.node_types import ServerInfo
from antiphon_core.rpc.server import RpcServer


class InstantLlm(llm_service_pb2_grpc.LlmServiceServicer):
    """Sends max_tokens deltas of the same text.

    Args:
        model: served name.
        step_seconds: pace of a multiplexed stream; 0 sends as fast as the reader takes it.
        text: of each token.
    """

    def __init__(self, model: str, step_seconds: float, text: str) -> None:
        self._model = model
        self._step_seconds = step_seconds
        self._text = text

    async def Generate(self, request, context) -> AsyncIterator[gen.GenerateResponse]:
        yield gen.GenerateResponse(
            accepted=gen.GenerateAccepted(model=self._model, fingerprint="fp", prompt_tokens=1)
        )
        delta = gen.GenerateResponse(delta=gen.GenerateDelta(text=self._text, token_count=1))
        for _ in range(request.stop.max_tokens):
            yield delta
        yield gen.GenerateResponse(finished=gen.ChoiceFinished(reason="FINISH_REASON_LENGTH"))
        yield gen.GenerateResponse(completed=gen.GenerateCompleted())

    async def GenerateMany(
        self, request_iterator, context
    ) -> AsyncIterator[gen.GenerateManyResponse]:
        fresh: list[str] = []
        left: dict[str, int] = {}
        work = asyncio.Event()

        async def read() -> None:
            async for request in request_iterator:
                if request.WhichOneof("action") == "start":
                    fresh.append(request.start.stream_id)
                    left[request.start.stream_id] = request.start.request.stop.max_tokens
                    work.set()
                else:
                    left.pop(request.cancel.stream_id, None)

        reader = asyncio.create_task(read())
        try:
            while True:
                if not left:
                    work.clear()
                    await work.wait()
                yield one_step(left, fresh, self._model, self._text)
                if self._step_seconds:
                    await asyncio.sleep(self._step_seconds)
        finally:
            reader.cancel()

    async def ListModels(self, request, context) -> llm.ListModelsResponse:
        model = llm.Model(id=self._model, chat=True, context_limit=100_000)
        return llm.ListModelsResponse(models=[model])


def one_step(
    left: dict[str, int], fresh: list[str], model: str, text: str
) -> gen.GenerateManyResponse:
    """One token for each running request; new ones are accepted, those without one left end."""
    message = gen.GenerateManyResponse()

    def tell(stream_id: str, **event) -> None:
        response = gen.GenerateResponse(**event)
        message.events.append(gen.GenerateManyEvent(stream_id=stream_id, response=response))

    for stream_id in left.keys() - fresh:
        message.stream_ids.append(stream_id)
        message.choices.append(0)
        message.texts.append(text)
        message.token_counts.append(1)
        left[stream_id] -= 1
        if not left[stream_id]:
            del left[stream_id]
            tell(stream_id, finished=gen.ChoiceFinished(reason="FINISH_REASON_LENGTH"))
            tell(stream_id, completed=gen.GenerateCompleted())
    for stream_id in fresh:
        tell(
            stream_id,
            accepted=gen.GenerateAccepted(model=model, fingerprint="fp", prompt_tokens=1),
        )
    fresh.clear()
    return message


async def serve(port: int, model: str, step_seconds: float, text: str) -> None:
    """Serves until the process is ended."""
    lifecycle = Lifecycle()
    node = NodeAdminServicer(lifecycle, lambda: ServerInfo("llm", "bench"))
    server = RpcServer(service="llm", bind=f"127.0.0.1:{port}", lifecycle=lifecycle, node=node)
    add = llm_service_pb2_grpc.add_LlmServiceServicer_to_server
    server.add(add, InstantLlm(model, step_seconds, text), "antiphon.llm.v1.LlmService")
    await server.start()
    lifecycle.ready()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A language model that says one word")
    parser.add_argument("port", type=int)
    parser.add_argument("--model", default="instant")
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--text-bytes", type=int, default=6)
    arguments = parser.parse_args()
    word = " " + "x" * (arguments.text_bytes - 1)
    asyncio.run(serve(arguments.port, arguments.model, arguments.step_ms / 1000, word))
