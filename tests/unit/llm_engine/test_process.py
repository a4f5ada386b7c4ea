"""The engine as the process that the front starts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from antiphon_core.ipc.worker import WorkerExit, WorkerProcess
from antiphon_llm.engine.__main__ import EXIT_FAULT, serve
from antiphon_llm.messages import (
    Boot,
    BootPhase,
    Cancel,
    EngineConfig,
    Fault,
    Finish,
    FromEngine,
    Gauges,
    Hello,
    Sampling,
    Shutdown,
    StepOutputs,
    Submit,
)
from structlog.testing import capture_logs
from transformers import LlamaConfig, LlamaForCausalLM

T = TypeVar("T")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_llama(tmp_path_factory.mktemp("tiny"), positions=128)


def small_llama(path: Path, positions: int) -> Path:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=positions,
        eos_token_id=95,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    return path


class Front:
    """Starts an engine process and keeps what it says."""

    def __init__(self, config: EngineConfig) -> None:
        self.messages: list[object] = []
        self.exits: list[WorkerExit] = []
        self._news = asyncio.Event()
        self.worker = WorkerProcess(
            name="llm-engine",
            module="antiphon_llm.engine",
            inbound=FromEngine,
            on_message=self._on_message,
            on_exit=self._on_exit,
            restart_limit=0,
            start_message=Boot(config),
        )

    def _on_message(self, message: object) -> None:
        self.messages.append(message)
        self._news.set()

    def _on_exit(self, exit: WorkerExit) -> None:
        self.exits.append(exit)
        self._news.set()

    async def until(self, kind: type[T], count: int = 1) -> list[T]:
        """The first ``count`` messages of a kind."""
        while True:
            found = [message for message in self.messages if isinstance(message, kind)]
            if len(found) >= count:
                return found
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 120)

    async def finish_of(self, request_id: str) -> Finish:
        while True:
            for message in self.messages:
                if isinstance(message, StepOutputs):
                    for finish in message.finished:
                        if finish.request_id == request_id:
                            return finish
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 120)


@pytest.fixture
async def front(checkpoint: Path) -> AsyncIterator[Front]:
    front = Front(EngineConfig(model_path=str(checkpoint), threads=1))
    await front.worker.start()
    yield front
    await front.worker.stop(5.0)


async def test_boots_serves_cancels_and_ends(front: Front) -> None:
    hello = (await front.until(Hello))[0]
    assert (hello.architecture, hello.context_limit, hello.eos_ids) == (
        "LlamaForCausalLM", 128, [95],
    )  # fmt: skip
    phases = [message.phase for message in front.messages if isinstance(message, BootPhase)]
    assert phases == ["configure", "load_weights", "allocate_kv", "grammars", "warm_up"]
    front.worker.send(Submit("a", [1, 2, 3], Sampling(temperature=0.0, max_tokens=5)))
    front.worker.send(Submit("b", [1, 2, 3], Sampling(max_tokens=120, ignore_eos=True)))
    front.worker.send(Cancel("b"))
    front.worker.send(Cancel("c"))
    front.worker.send(Submit("c", [1], Sampling()))
    assert (await front.finish_of("a")).reason in ("length", "stop")
    assert (await front.finish_of("b")).reason == "cancelled"
    assert (await front.finish_of("c")).reason == "cancelled"
    front.messages.clear()
    idle = (await front.until(Gauges, 2))[-1]
    assert (idle.running, idle.kv_used, idle.waiting) == (0, 0, 0)
    front.worker.send(Shutdown())
    while not front.exits:
        await asyncio.sleep(0.02)
    assert (front.exits[0].code, front.exits[0].signal) == (0, None)


@pytest.mark.parametrize("depth", [0, 1])
async def test_sigterm_in_mid_stream_ends_every_request(tmp_path: Path, depth: int) -> None:
    # Long enough for the signal to come in the middle however late this process sends it.
    path = small_llama(tmp_path, positions=16_384)
    front = Front(EngineConfig(model_path=str(path), threads=1, overlap_depth=depth))
    await front.worker.start()
    try:
        await front.until(Hello)
        for n in range(12):
            sampling = Sampling(max_tokens=16_000, ignore_eos=True)
            front.worker.send(Submit(f"r{n}", [1, 2, 3], sampling))
        await front.until(StepOutputs)
        assert front.worker.pid is not None
        os.kill(front.worker.pid, signal.SIGTERM)
        ends = [await front.finish_of(f"r{n}") for n in range(12)]
        assert {end.error_reason for end in ends} == {"DRAINING"}
        while not front.exits:
            await asyncio.sleep(0.02)
        assert (front.exits[0].code, front.exits[0].signal) == (0, None)
    finally:
        await front.worker.stop(5.0)


@pytest.mark.parametrize("depth", [0, 1])
def test_nothing_outlives_the_engine(
    checkpoint: Path, endpoint_type, depth: int, default_logging: None
) -> None:
    endpoint = endpoint_type()
    endpoint.inbox.append(
        Boot(EngineConfig(model_path=str(checkpoint), threads=1, overlap_depth=depth))
    )
    waits = iter(
        [Submit("a", [1, 2, 3], Sampling(max_tokens=4, ignore_eos=True)), None, Shutdown()]
    )

    def next_message() -> None:
        if not endpoint.inbox and (message := next(waits)) is not None:
            endpoint.inbox.append(message)

    endpoint.before_wait = next_message
    with capture_logs() as logs:
        assert serve(endpoint) == 0
    assert any(finish.reason == "length" for m in endpoint.sent if isinstance(m, StepOutputs)
               for finish in m.finished)  # fmt: skip
    assert [entry["unowned"] for entry in logs if entry["event"] == "engine_released"] == [{}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_path": "/nowhere/at/all.gguf"}, ["does not exist"]),
        ({"device": "tpu"}, ["device", "tpu", "cpu"]),
        ({"dtype": "int3"}, ["dtype", "int3", "float32"]),
        ({"step_tokens": 4}, ["step_tokens"]),
        ({"context_limit": 4096}, ["context_limit", "128"]),
        ({"overlap_depth": 2}, ["overlap_depth is 2", "0, 1"]),
        ({"upload_mode": "fast"}, ["upload_mode", "fast", "packed"]),
        ({"graphs": "sometimes"}, ["graphs", "sometimes", "off"]),
        ({"graph_rows_max": 9}, ["graph_rows_max", "max_rows 8", "9"]),
        ({"reserved_bytes": -1}, ["reserved_bytes", "-1"]),
    ],
)
def test_a_boot_that_cannot_work_is_a_fault_with_its_reason(
    checkpoint: Path, endpoint_type, change: dict[str, object], words: list[str]
) -> None:
    endpoint = endpoint_type()
    fields = {"model_path": str(checkpoint), **change}
    endpoint.inbox.append(Boot(EngineConfig(**fields)))
    assert serve(endpoint) == EXIT_FAULT
    fault = endpoint.sent[-1]
    assert isinstance(fault, Fault)
    assert fault.reason == "BOOT_FAILED" and fault.phase
    assert all(word in fault.message for word in words), fault.message


def test_shutdown_before_boot_ends_at_once(endpoint_type) -> None:
    endpoint = endpoint_type()
    endpoint.inbox.append(Shutdown())
    assert serve(endpoint) == 0
