"""The real Envoy in front of the real suite: REST, SSE, WebSocket, gRPC; nothing it should hide."""

from __future__ import annotations

import itertools
import json
import time

import grpc
import httpx
import pytest
import websockets
from antiphon.admin.v1 import node_pb2, node_pb2_grpc
from antiphon.llm.v1 import generate_pb2, llm_service_pb2, llm_service_pb2_grpc
from antiphon.vocoder.v1 import (
    recognition_service_pb2,
    recognition_service_pb2_grpc,
    vocoder_service_pb2,
    vocoder_service_pb2_grpc,
)
from support.suite import RunningSuite
from support.waiting import until

pytestmark = pytest.mark.real


@pytest.fixture
async def channel(suite: RunningSuite):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{suite.port}") as channel:
        yield channel


def test_rest_passes_and_carries_a_request_id(suite: RunningSuite):
    response = httpx.get(f"{suite.url}/v1/models", headers={"x-request-id": "e2e-1"})
    assert response.status_code == 200
    assert response.headers["x-request-id"] == "e2e-1"
    assert response.headers["server"] == "envoy"


def test_sse_is_not_buffered(suite: RunningSuite):
    body = {
        "messages": [{"role": "user", "content": "Count from one to twenty."}],
        "max_tokens": 48,
        "temperature": 0,
        "stream": True,
    }
    arrivals = []
    with httpx.stream("POST", f"{suite.url}/v1/chat/completions", json=body, timeout=60) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                arrivals.append((time.perf_counter(), line))
    assert arrivals[-1][1] == "data: [DONE]"
    spread = arrivals[-1][0] - arrivals[0][0]
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(arrivals)]
    # A busy machine merges pieces, but never all of them.
    assert len(arrivals) > 4
    assert max(gaps) < 0.8 * spread, "all tokens came in one burst"


async def test_the_websocket_is_upgraded(suite: RunningSuite):
    address = suite.url.replace("http", "ws") + "/v1/realtime?model=default"
    async with websockets.connect(address) as socket:
        first = json.loads(await socket.recv())
    assert first["type"] == "session.created"


async def test_grpc_generation_streams(channel: grpc.aio.Channel):
    stub = llm_service_pb2_grpc.LlmServiceStub(channel)
    request = generate_pb2.GenerateRequest(text="The capital of France is")
    request.sampling.temperature = 0.0
    request.stop.max_tokens = 8
    events = [response async for response in stub.Generate(request)]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "accepted"
    assert kinds[-2:] == ["finished", "completed"]
    text = "".join(event.delta.text for event in events)
    assert "Paris" in text
    assert events[-1].completed.usage.output_tokens == 8


async def test_grpc_speech_streams_both_ways(channel: grpc.aio.Channel):
    stub = vocoder_service_pb2_grpc.VocoderServiceStub(channel)
    request = vocoder_service_pb2.StreamSpeechRequest

    async def pieces():
        yield request(config=vocoder_service_pb2.SpeechConfig())
        for word in ["Hello", "there,", "my", "friend."]:
            yield request(text=word + " ")

    kinds = [r.WhichOneof("message") async for r in stub.StreamSpeech(pieces())]
    assert kinds[0] == "ready"
    assert "audio" in kinds
    assert kinds[-1] == "finished"


async def test_grpc_recognisers_are_listed(channel: grpc.aio.Channel):
    stub = recognition_service_pb2_grpc.RecognitionServiceStub(channel)
    answer = await stub.ListRecognizers(recognition_service_pb2.ListRecognizersRequest())
    assert answer.recognizers


async def test_errors_keep_their_details_through_envoy(channel: grpc.aio.Channel):
    stub = llm_service_pb2_grpc.LlmServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.GetModel(llm_service_pb2.GetModelRequest(model="nobody"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert any(
        b"MODEL_NOT_FOUND" in value
        for key, value in refused.value.trailing_metadata() or ()
        if key == "grpc-status-details-bin"
    )


async def test_administration_is_not_on_the_edge(suite: RunningSuite, channel: grpc.aio.Channel):
    stub = node_pb2_grpc.NodeAdminServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.Drain(node_pb2.DrainRequest(reason="attack"))
    async with httpx.AsyncClient(base_url=suite.url) as client:
        assert (await client.get("/metrics")).status_code == 404


async def test_every_service_is_ready_in_the_admins_view(suite: RunningSuite):
    def all_ready() -> bool:
        replicas = suite.snapshot()
        assert set(replicas) == {"llm-0", "vocoder-0", "gateway-0"}
        return all(replica["ready"] for replica in replicas.values())

    def all_read() -> bool:
        text = httpx.get(f"http://127.0.0.1:{suite.port + 5}/metrics", timeout=30).text
        samples = [
            f'antiphon_up{{replica="{id}",service="{id[:-2]}"}} 1.0' for id in suite.snapshot()
        ]
        return all(sample in text for sample in samples)

    # The tests before may have left a service with more than it can do in time.
    await until(all_ready, 60)
    await until(all_read, 60)
