"""The inbox, the codec, the restart budget, the local twin, and what a worker imports."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zmq
from antiphon_core.errors import Unavailable
from antiphon_core.ipc.channel import FrontChannel
from antiphon_core.ipc.codec import Codec, MessageDecodeError
from antiphon_core.ipc.endpoint import Endpoint
from antiphon_core.ipc.inbox import Inbox
from antiphon_core.ipc.local import LocalTransport
from antiphon_core.ipc.supervision import RestartBudget
from antiphon_core.ipc.worker import WorkerExit
from echo_messages import (
    Die,
    Emit,
    FromWorker,
    LastWords,
    Ping,
    Pong,
    Shutdown,
    Start,
    Stray,
    ToWorker,
    Up,
)
from echo_worker import serve
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import until


def test_an_inbox_loses_and_reorders_nothing_between_threads() -> None:
    inbox = Inbox()
    got: list[object] = []

    def write(start: int) -> None:
        for number in range(start, start + 5_000):
            inbox.put(number)

    writers = [threading.Thread(target=write, args=(start,)) for start in (0, 10_000)]
    for writer in writers:
        writer.start()
    while len(got) < 10_000:
        assert inbox.wait(20.0)
        got += inbox.drain()
    for writer in writers:
        writer.join()
    assert [item for item in got if item < 10_000] == list(range(5_000))
    assert [item for item in got if item >= 10_000] == list(range(10_000, 15_000))
    assert not inbox.wait(0.0)
    assert inbox.drain() == []


def test_a_burst_wakes_the_reader_once() -> None:
    inbox = Inbox()
    wakes = 0
    set_flag = inbox._wake.set

    def counted() -> None:
        nonlocal wakes
        wakes += 1
        set_flag()

    inbox._wake.set = counted
    for number in range(100):
        inbox.put(number)
    assert len(inbox.drain()) == 100
    inbox.put(100)
    assert wakes == 2


def test_wait_ends_at_its_timeout_and_at_an_item() -> None:
    inbox = Inbox()
    started = time.monotonic()
    assert not inbox.wait(0.05)
    assert time.monotonic() - started >= 0.05
    threading.Timer(0.05, inbox.put, args=(1,)).start()
    assert inbox.wait(20.0)
    assert inbox.drain() == [1]


def test_a_failure_comes_after_the_items_and_stays() -> None:
    inbox = Inbox()
    inbox.put(1)
    inbox.fail(ConnectionError("gone"))
    inbox.fail(ValueError("later"))
    assert inbox.wait(0.0)
    assert inbox.drain() == [1]
    for _ in range(2):
        with pytest.raises(ConnectionError, match="gone"):
            inbox.drain()


@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1)), text=st.text())
def test_the_codec_is_exact(numbers: list[int], text: str) -> None:
    codec = Codec(FromWorker)
    for message in (*(Pong(number) for number in numbers), Up(text, 1)):
        assert codec.decode(codec.encode(message)) == message


def test_the_codec_refuses_strangers() -> None:
    codec = Codec(FromWorker)
    with pytest.raises(MessageDecodeError, match="stray"):
        codec.decode(codec.encode(Stray()))
    with pytest.raises(MessageDecodeError):
        codec.decode(b"\xc1")
    with pytest.raises(TypeError, match="got dict"):
        codec.encode({"type": "pong"})


def test_the_restart_budget_renews_with_time() -> None:
    now = 0.0
    budget = RestartBudget(2, 600.0, clock=lambda: now)
    assert [budget.take(), budget.take(), budget.take()] == [True, True, False]
    now = 599.0
    assert not budget.take()
    now = 600.0
    assert [budget.take(), budget.take(), budget.take()] == [True, True, False]


class Local:
    """A LocalTransport around the echo worker."""

    def __init__(self, target=serve) -> None:
        self.messages: list[object] = []
        self.exits: list[WorkerExit] = []
        self.transport = LocalTransport(
            target,
            worker_inbound=ToWorker,
            inbound=FromWorker,
            on_message=self.messages.append,
            on_exit=self.exits.append,
            start_message=Start("local"),
            stop_message=Shutdown(),
        )

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20.0):
            while len(self.messages) < count:
                await asyncio.sleep(0.001)


async def test_the_local_twin_speaks_the_same_messages() -> None:
    local = Local()
    await local.transport.start()
    local.transport.send(Ping(7))
    local.transport.send(Emit(2))
    await local.until(4)
    assert local.messages[1:] == [Pong(7), Pong(0), Pong(1)]
    assert local.transport.alive
    await local.transport.stop()
    assert not local.transport.alive
    assert local.exits == []
    with pytest.raises(Unavailable):
        local.transport.send(Ping(1))


async def test_the_local_twin_reports_a_death() -> None:
    local = Local()
    await local.transport.start()
    local.transport.send(Die(0))
    await local.until(2)
    async with asyncio.timeout(20.0):
        while not local.exits:
            await asyncio.sleep(0.001)
    assert local.messages[-1] == LastWords("leaving")
    assert not local.exits[0].will_restart


async def test_the_local_twin_refuses_what_a_socket_would() -> None:
    def stray(endpoint: Endpoint) -> None:
        endpoint.send(Stray())

    local = Local(stray)
    await local.transport.start()
    with pytest.raises((MessageDecodeError, Unavailable)):
        local.transport.send(Stray())
    async with asyncio.timeout(20.0):
        while not local.exits:
            await asyncio.sleep(0.001)
    assert local.exits[0].code == 1


async def test_what_a_worker_sent_is_there_once_its_link_is_lost(short_tmp: Path) -> None:
    """However late ZeroMQ's thread is: until then the worker has not left."""
    heard: list[object] = []
    addresses = f"ipc://{short_tmp}/front", f"ipc://{short_tmp}/worker"
    front = FrontChannel(
        *addresses, inbound=FromWorker, on_message=heard.append, on_protocol_error=heard.append
    )
    await front.until_left(60.0)  # Nobody came.
    context = zmq.Context()
    worker = context.socket(zmq.PAIR)
    worker.connect(addresses[0])
    encode = Codec(FromWorker).encode
    worker.send(encode(Up("here", 1)))
    await until(lambda: heard)
    leaving = asyncio.create_task(front.until_left(60.0))
    await asyncio.sleep(0.1)
    assert not leaving.done()
    for number in range(50_000):
        worker.send(encode(Pong(number)))
    worker.close(linger=60_000)
    await asyncio.to_thread(context.term)
    await leaving
    front.read_available()
    front.close()
    assert heard[1:] == [Pong(number) for number in range(50_000)]


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(name.split('.')[0] for name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_a_worker_imports_no_grpc() -> None:
    loaded = modules_after(
        "import antiphon_core.ipc.endpoint, antiphon_core.logs, antiphon_core.metrics"
    )
    assert not loaded & {"grpc", "torch", "numpy", "pydantic"}


def test_core_imports_neither_torch_nor_numpy() -> None:
    loaded = modules_after(
        "import antiphon_core.service, antiphon_core.node, antiphon_core.rpc.channel,"
        " antiphon_core.rpc.streams, antiphon_core.ipc.worker, antiphon_core.ipc.local"
    )
    assert not loaded & {"torch", "numpy", "opentelemetry"}
