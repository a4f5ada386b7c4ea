"""Boot, engine death, restart, node admin."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from antiphon.admin.v1 import node_pb2
from antiphon.llm.v1 import generate_pb2, llm_service_pb2
from antiphon_core import metrics
from antiphon_core.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from antiphon_core.lifecycle import State
from antiphon_core.rpc.streams import messages, open_stream, result
from antiphon_llm.front import engine_client
from antiphon_llm.messages import Sampling, Submit
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from llm_bench import LlmBench, chat, limit, tokens
from scripted_engine import COUNT, END, HOLD, Script
from support.waiting import until


async def test_a_killed_engine_fails_every_live_request_and_comes_back(
    llm_process: LlmBench,
) -> None:
    llm = llm_process
    errors: list[Unavailable] = []
    started = asyncio.Barrier(9)

    async def stream() -> None:
        try:
            async with open_stream(llm.stub.Generate(tokens(COUNT, stop=limit(4000)))) as call:
                first = True
                async for message in messages(call):
                    if first and message.HasField("delta"):
                        first = False
                        await started.wait()
        except Unavailable as error:
            errors.append(error)

    tasks = [asyncio.create_task(stream()) for _ in range(8)]
    await asyncio.wait_for(started.wait(), 20)
    os.kill(llm.worker.pid, signal.SIGKILL)
    await until(lambda: len(errors) == 8)
    assert {error.reason for error in errors} == {"WORKER_DIED"}
    assert all(error.retry_after for error in errors)
    await asyncio.gather(*tasks)
    await until(lambda: llm.lifecycle.state is State.READY, 20)
    found = await llm.generate(tokens(COUNT, stop=limit(3)))
    assert found.completed[0].usage.output_tokens == 3
    assert llm.front.measures().worker_restarts == 1


async def test_while_the_engine_restarts_new_work_is_refused(llm_process: LlmBench) -> None:
    llm = llm_process
    os.kill(llm.worker.pid, signal.SIGKILL)
    await until(lambda: llm.lifecycle.state is State.BOOTING)
    with pytest.raises(Unavailable) as caught:
        await llm.generate(tokens(COUNT))
    assert caught.value.reason == "BOOTING"
    health = HealthStub(llm.channel)
    ready = await health.Check(health_pb2.HealthCheckRequest(service="ready"))
    live = await health.Check(health_pb2.HealthCheckRequest(service="live"))
    assert (ready.status, live.status) == (2, 1)
    await until(lambda: llm.lifecycle.state is State.READY, 20)


async def test_spent_restarts_fail_the_service(llm: LlmBench) -> None:
    """An engine in a thread is never restarted."""
    call = llm.stub.Generate(tokens(HOLD))
    reading = asyncio.ensure_future(call.read())
    await until(lambda: llm.front.measures().waiting == 1)
    llm.worker.send(_unknown())
    await until(lambda: llm.lifecycle.state is State.FAILED)
    assert "restarts are used up" in llm.lifecycle.reason
    await asyncio.gather(reading, return_exceptions=True)
    assert call.done()


def _unknown() -> object:
    """A message that the scripted engine chokes on."""
    return Submit(request_id="bad", prompt_ids=[], sampling=Sampling())


async def test_before_boot_calls_are_refused_and_node_admin_answers(model_cache: Path) -> None:
    made = LlmBench(model_cache, Script())
    await made.open()
    with pytest.raises(Unavailable) as caught:
        await made.generate(tokens(COUNT))
    assert caught.value.reason == "BOOTING"
    info = await result(made.node.GetServerInfo(node_pb2.GetServerInfoRequest()))
    assert (info.service, info.device) == ("llm", "cpu")
    await made.boot()
    assert [phase.name for phase in made.lifecycle.snapshot().phases][-1] == "readiness request"
    await made.stop()


async def test_a_bad_model_refuses_the_boot(tmp_path: Path) -> None:
    notes = tmp_path / "notes.gguf"
    notes.write_text("these are my notes, not a model")
    made = LlmBench(tmp_path, Script(), model=str(notes))
    with pytest.raises(FailedPrecondition, match="not a GGUF file"):
        await made.start()
    await made.stop()


async def test_an_engine_with_another_vocabulary_refuses_the_boot(model_cache: Path) -> None:
    made = LlmBench(model_cache, Script(vocabulary=1000))
    with pytest.raises(FailedPrecondition, match="do not belong together"):
        await made.start()
    await made.stop()


async def test_an_engine_that_found_another_tokenizer_refuses_the_boot(model_cache: Path) -> None:
    made = LlmBench(model_cache, Script(tokenizer="0" * 64))
    with pytest.raises(FailedPrecondition, match="another tokenizer than the one in use"):
        await made.start()
    await made.stop()


async def test_models_are_listed_while_the_engine_restarts(llm_process: LlmBench) -> None:
    llm = llm_process
    os.kill(llm.worker.pid, signal.SIGKILL)
    await until(lambda: llm.lifecycle.state is State.BOOTING)
    models = await result(llm.stub.ListModels(llm_service_pb2.ListModelsRequest()))
    assert models.models[0].id == "smollm2-135m-instruct"
    await until(lambda: llm.lifecycle.state is State.READY, 20)


async def test_status_snapshot_and_metrics_tell_the_same_story(llm: LlmBench) -> None:
    before = metrics.value("requests_total", operation="generate", finish_reason="length") or 0
    drawn = metrics.value("tokens_total", type="output") or 0
    for _ in range(3):
        await llm.generate(tokens(COUNT, choice_count=2, stop=limit(5)))
    after = metrics.value("requests_total", operation="generate", finish_reason="length")
    assert after == before + 3
    assert metrics.value("tokens_total", type="output") == drawn + 30
    snapshot = await result(llm.node.GetSnapshot(node_pb2.GetSnapshotRequest()))
    assert snapshot.status.models == ["smollm2-135m-instruct"]
    assert snapshot.status.slots_total == 8
    assert snapshot.status.kv_entries_total == 100
    record = snapshot.requests[-1]
    assert (record.operation, record.finish_reason) == ("generate", "length")
    assert [phase.name for phase in record.phases] == ["queued", "prefill", "answer"]
    assert record.output_count == 10


async def test_an_operator_ends_one_request_normally(llm: LlmBench) -> None:
    """Also one that ignores end tokens; it is answered when the engine has taken the order."""
    finished = None
    endless = generate_pb2.StopParams(max_tokens=4000, ignore_eos=True)
    async with open_stream(llm.stub.Generate(tokens(COUNT, stop=endless))) as call:
        async for message in messages(call):
            if message.HasField("accepted"):
                stop = node_pb2.StopRequestRequest(request_id=message.accepted.request_id)
                await result(llm.node.StopRequest(stop))
            if message.HasField("finished"):
                finished = message.finished
            last = message
    assert finished is not None
    assert finished.reason == generate_pb2.FINISH_REASON_STOP
    assert finished.stop_token_id == END
    assert last.WhichOneof("event") == "completed"
    with pytest.raises(NotFound):
        await result(llm.node.StopRequest(node_pb2.StopRequestRequest(request_id="gone")))


async def test_an_order_to_answer_is_refused_with_the_engine_s_reason(llm: LlmBench) -> None:
    async with open_stream(llm.stub.Generate(tokens(COUNT, stop=limit(4000)))) as call:
        async for message in messages(call):
            if not message.HasField("accepted"):
                continue
            order = node_pb2.AnswerNowRequest(request_id=message.accepted.request_id)
            with pytest.raises(FailedPrecondition, match="does not reason"):
                await result(llm.node.AnswerNow(order))
            break
    with pytest.raises(NotFound):
        await result(llm.node.AnswerNow(node_pb2.AnswerNowRequest(request_id="gone")))
    with pytest.raises(InvalidArgument):
        await result(llm.node.AnswerNow(node_pb2.AnswerNowRequest()))


async def test_a_model_name_is_resolved_by_any_of_its_names(model_cache: Path) -> None:
    made = LlmBench(model_cache, Script(), served_name="team/chat", aliases=["default"])
    await made.start()
    for name in ("", "team/chat", "chat", "default", "smollm2-135m-instruct"):
        model = await result(made.stub.GetModel(llm_service_pb2.GetModelRequest(model=name)))
        assert model.model.id == "team/chat"
    await made.stop()


async def test_an_engine_that_stands_still_with_work_fails_the_service(
    llm_process: LlmBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llm_process
    monkeypatch.setattr(engine_client, "_WATCH_SECONDS", 0.05)
    monkeypatch.setattr(engine_client, "_STALL_DEGRADED_SECONDS", 0.3)
    os.kill(llm.worker.pid, signal.SIGSTOP)
    reading = asyncio.ensure_future(llm.stub.Generate(tokens(COUNT)).read())
    await until(lambda: llm.lifecycle.state is State.DEGRADED)
    monkeypatch.setattr(engine_client, "_STALL_FAILED_SECONDS", 1.0)
    await until(lambda: llm.lifecycle.state is State.FAILED)
    assert "no step" in llm.lifecycle.reason
    os.kill(llm.worker.pid, signal.SIGCONT)
    reading.cancel()


async def test_a_base_model_takes_text_but_no_messages(model_cache: Path) -> None:
    made = LlmBench(model_cache, Script(vocabulary=262144), model="gemma-3-270m")
    await made.start()
    with pytest.raises(InvalidArgument) as caught:
        await made.generate(chat("Hi"))
    assert (caught.value.reason, caught.value.field) == ("TEMPLATE_ERROR", "chat")
    await made.generate(generate_pb2.GenerateRequest(text="The capital", stop=limit(1)))
    assert made.seen(Submit)[0].prompt_ids[0] == 2
    await made.stop()
