"""Real worker processes: order, deaths, restarts, the budget, protocol errors."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from antiphon_core.config import process_environment
from antiphon_core.errors import Unavailable
from antiphon_core.ipc.worker import WorkerExit, WorkerProcess
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
    Up,
)
from support.waiting import until


class Harness:
    """A WorkerProcess with recorded messages and exits."""

    def __init__(self, modules: Path, **options: Any) -> None:
        self.messages: list[object] = []
        self.exits: list[tuple[WorkerExit, float]] = []
        self.in_exit: Callable[[], None] = lambda: None
        self.worker = WorkerProcess(
            name="echo",
            module=options.pop("module", "echo_worker"),
            inbound=FromWorker,
            on_message=self.messages.append,
            on_exit=self._on_exit,
            environment={"PYTHONPATH": str(modules)},
            start_message=Start("hello"),
            stop_message=options.pop("stop_message", Shutdown()),
            **options,
        )

    def _on_exit(self, exit_record: WorkerExit) -> None:
        self.exits.append((exit_record, time.monotonic()))
        self.in_exit()

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]


@pytest.fixture
async def make_harness(worker_modules: Path):
    made: list[Harness] = []

    async def make(**options: Any) -> Harness:
        harness = Harness(worker_modules, **options)
        made.append(harness)
        await harness.worker.start()
        await until(lambda: harness.of(Up) or options.get("module"))
        return harness

    yield make
    for harness in made:
        await harness.worker.stop()


async def test_messages_keep_their_order_both_ways(make_harness) -> None:
    harness = await make_harness()
    for number in range(10_000):
        harness.worker.send(Ping(number))
    await until(lambda: len(harness.of(Pong)) == 10_000)
    assert [pong.number for pong in harness.of(Pong)] == list(range(10_000))


async def test_messages_sent_before_the_worker_is_up_arrive_after_the_start_message(
    worker_modules: Path,
) -> None:
    harness = Harness(worker_modules)
    await harness.worker.start()
    harness.worker.send(Ping(1))
    await until(lambda: harness.of(Pong))
    assert isinstance(harness.messages[0], Up)
    assert harness.messages[0].label == "hello"
    await harness.worker.stop()


async def test_a_killed_worker_is_reported_and_restarts(make_harness) -> None:
    harness = await make_harness()
    first_pid = harness.worker.pid
    os.kill(first_pid, signal.SIGKILL)
    await until(lambda: harness.exits)
    exit_record, _ = harness.exits[0]
    assert (exit_record.pid, exit_record.signal, exit_record.code) == (first_pid, 9, None)
    assert exit_record.description == "SIGKILL"
    assert exit_record.will_restart
    await until(lambda: len(harness.of(Up)) == 2)
    assert harness.worker.restarts == 1
    assert harness.worker.pid == harness.of(Up)[1].pid != first_pid


async def test_death_is_noticed_within_200_ms(make_harness) -> None:
    """The best of three, as the machine is shared."""
    harness = await make_harness()
    delays = []
    for count in range(1, 4):
        await until(lambda ups=count: len(harness.of(Up)) == ups)
        killed_at = time.monotonic()
        os.kill(harness.worker.pid, signal.SIGKILL)
        await until(lambda deaths=count: len(harness.exits) == deaths)
        delays.append(harness.exits[-1][1] - killed_at)
    assert min(delays) < 0.2


async def test_a_message_to_the_dead_worker_never_reaches_the_next_one(make_harness) -> None:
    harness = await make_harness()
    os.kill(harness.worker.pid, signal.SIGSTOP)
    for number in range(100):
        harness.worker.send(Ping(number))
    harness.in_exit = lambda: harness.worker.send(Ping(1000))
    os.kill(harness.worker.pid, signal.SIGKILL)
    await until(lambda: harness.of(Pong))
    assert [pong.number for pong in harness.of(Pong)] == [1000]
    assert [type(message) for message in harness.messages] == [Up, Up, Pong]


async def test_the_restart_budget_ends(make_harness) -> None:
    harness = await make_harness(restart_limit=2, restart_window=600.0)
    for deaths in range(1, 4):
        await until(lambda count=deaths: len(harness.of(Up)) == count)
        os.kill(harness.worker.pid, signal.SIGKILL)
        await until(lambda count=deaths: len(harness.exits) == count)
    assert [record.will_restart for record, _ in harness.exits] == [True, True, False]
    assert not harness.worker.alive
    assert harness.worker.pid is None
    with pytest.raises(Unavailable, match="does not run") as caught:
        harness.worker.send(Ping(1))
    assert caught.value.reason == "WORKER_DIED"


async def test_last_words_arrive_before_the_exit(make_harness) -> None:
    harness = await make_harness(restart_limit=0)
    heard: list[int] = []
    harness.in_exit = lambda: heard.append(len(harness.of(LastWords)))
    harness.worker.send(Die(73))
    await until(lambda: harness.exits)
    assert heard == [1]
    assert harness.exits[0][0].code == 73
    assert harness.exits[0][0].description == "exit status 73"


async def test_a_module_that_does_not_start_spends_the_budget(make_harness) -> None:
    harness = await make_harness(module="no_such_worker_module", restart_limit=1)
    await until(lambda: len(harness.exits) == 2)
    assert [record.code for record, _ in harness.exits] == [1, 1]


async def test_an_unknown_message_from_the_worker_restarts_it(make_harness) -> None:
    harness = await make_harness()
    harness.worker.send(Emit(3, unknown=True))
    await until(lambda: harness.exits)
    assert len(harness.of(Pong)) == 3
    assert harness.exits[0][0].signal == signal.SIGKILL


async def test_an_unknown_message_to_the_worker_ends_it(make_harness) -> None:
    harness = await make_harness(restart_limit=0)
    harness.worker.send(Stray())
    await until(lambda: harness.exits)
    assert harness.exits[0][0].code == 1


async def test_send_refuses_what_is_no_struct(make_harness) -> None:
    harness = await make_harness()
    with pytest.raises(TypeError, match="msgspec struct"):
        harness.worker.send({"number": 1})


async def test_stop_by_message_removes_the_sockets_and_is_no_death(
    make_harness, monkeypatch, short_tmp: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_tmp))
    harness = await make_harness()
    (directory,) = os.scandir(short_tmp)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert os.listdir(directory)
    await harness.worker.stop(grace=5.0)
    assert not harness.worker.alive
    assert harness.exits == []
    assert os.listdir(short_tmp) == []


async def test_stop_kills_a_worker_that_does_not_listen(make_harness) -> None:
    harness = await make_harness()
    os.kill(harness.worker.pid, signal.SIGSTOP)
    started = time.monotonic()
    await harness.worker.stop(grace=0.2)
    assert time.monotonic() - started < 15.0
    assert not harness.worker.alive


async def test_a_raising_callback_does_not_stop_the_stream(worker_modules: Path) -> None:
    harness = Harness(worker_modules)
    seen: list[int] = []

    def fail_on_first(message: object) -> None:
        if isinstance(message, Pong):
            seen.append(message.number)
            if message.number == 0:
                raise RuntimeError("callback defect")

    harness.worker._on_message = fail_on_first
    await harness.worker.start()
    harness.worker.send(Emit(3))
    await until(lambda: len(seen) == 3)
    await harness.worker.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_the_worker_dies_with_its_parent(worker_modules: Path, short_tmp: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, str(worker_modules / "orphan_parent.py")],
        stdout=subprocess.PIPE,
        env=process_environment({"TMPDIR": str(short_tmp)}),
        text=True,
    )
    assert parent.stdout is not None
    try:
        worker_pid = next(int(line) for line in parent.stdout if line.strip().isdigit())
        os.kill(worker_pid, 0)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    deadline = time.monotonic() + 20.0
    while _runs(worker_pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(worker_pid)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
