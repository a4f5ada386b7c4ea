"""StreamSpeech with the real Piper voice and real worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest
from antiphon_core.errors import Unavailable
from antiphon_core.lifecycle import State
from speech_bench import SpeechBench, running

FOX = "The quick brown fox jumps over the lazy dog."
TEXT = f"{FOX} It was not the first time."


@pytest.fixture(scope="module")
def loop_runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def bench(loop_runner: asyncio.Runner) -> Iterator[SpeechBench]:
    """One service for the module: loading the voice takes seconds."""
    service: AsyncIterator[SpeechBench] = running(slots=8)  # pyright: ignore[reportAssignmentType]
    made = loop_runner.run(service.__aenter__())  # pyright: ignore[reportAttributeAccessIssue]
    yield made
    loop_runner.run(service.__aexit__(None, None, None))  # pyright: ignore[reportAttributeAccessIssue]


def test_speech_has_the_length_and_level_of_speech(
    bench: SpeechBench, loop_runner: asyncio.Runner
) -> None:
    spoken = loop_runner.run(bench.say(FOX))
    seconds = len(spoken.samples) / 22050
    assert 2.0 < seconds < 4.0
    level = np.sqrt(np.mean((spoken.samples / 32768) ** 2))
    assert 0.02 < level < 0.3
    assert np.abs(spoken.samples).max() <= round(0.99 * 32767)
    # One mark at most a word, at a word's end, evenly enough to cut a transcript by.
    offsets = [offset for offset, _ in spoken.marks]
    places = [sample for _, sample in spoken.marks]
    assert offsets == [index for index in range(1, 45) if FOX[index : index + 1] in (" ", "")]
    assert places == sorted(places)
    assert spoken.marks[-1] == (len(FOX), len(spoken.samples))
    fox_ends = spoken.marks[offsets.index(19)][1]
    assert 0.2 < fox_ends / len(spoken.samples) < 0.6
    # Trimmed: speech begins at once and ends with the sentence's pause.
    assert np.abs(spoken.samples[: int(0.03 * 22050)]).max() > 100
    assert np.abs(spoken.samples[-int(0.19 * 22050) :]).max() == 0


def test_cuts_neighbours_and_reused_slots_change_nothing(
    bench: SpeechBench, loop_runner: asyncio.Runner
) -> None:
    async def speak() -> None:
        whole = await bench.say(TEXT)
        pieces = [TEXT[i : i + 9] for i in range(0, len(TEXT), 9)]
        together = await asyncio.gather(
            bench.say(TEXT, pieces=pieces),
            bench.say(TEXT),
            bench.say("Something else entirely is said here."),
        )
        assert together[0].data == together[1].data == whole.data
        assert together[0].marks == together[1].marks == whole.marks
        assert together[2].data != whole.data

    loop_runner.run(speak())


def test_speed_and_noise(bench: SpeechBench, loop_runner: asyncio.Runner) -> None:
    normal = loop_runner.run(bench.say(FOX))
    fast = loop_runner.run(bench.say(FOX, speed=2.0))
    assert 0.4 < len(fast.samples) / len(normal.samples) < 0.7
    keyless = loop_runner.run(bench.say("Hello there.", noise_key=None))
    again = loop_runner.run(bench.say("Hello there.", noise_key=None))
    assert keyless.data != again.data


def test_killed_workers_are_typed_errors_and_come_back(
    bench: SpeechBench, loop_runner: asyncio.Runner
) -> None:
    async def kill_engine() -> None:
        pid = bench.runtime.engine.pid
        assert pid is not None
        speaking = asyncio.create_task(bench.say(f"{TEXT} " * 20))
        while bench.runtime.slots.busy == 0:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Unavailable) as error:
            await speaking
        assert time.monotonic() - killed_at < 1.0
        assert error.value.reason == "WORKER_DIED"
        assert error.value.retry_after is not None
        assert bench.lifecycle.state is State.DEGRADED
        # The next request waits for the new process.
        assert (await bench.say(FOX)).kinds[-1] == "finished"
        assert bench.lifecycle.state is State.READY
        await bench.until_idle()

    async def kill_phonemizer() -> None:
        pid = bench.runtime.phonemizer.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        # A request that meets the dead process is asked again of the next.
        assert (await bench.say(FOX)).kinds[-1] == "finished"

    loop_runner.run(kill_engine())
    loop_runner.run(kill_phonemizer())
