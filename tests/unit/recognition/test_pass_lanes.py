"""The queue over a recogniser that takes several passes at once, and passes nobody waits for."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from antiphon_vocoder.recognition.messages import DecodeOptions, Final, Partial
from antiphon_vocoder.recognition.passes import PassQueue
from antiphon_vocoder.recognition.segmenter import Pause, Progress, Utterance

from tests.unit.recognition.fakes import SpanRecognizer

LANES = 3


class Bench:
    """A queue of three lanes with a fake recogniser and streams 1 to 4."""

    def __init__(self) -> None:
        self.recognizer = SpanRecognizer()
        self.sent: queue.Queue[object] = queue.Queue()
        self.passes = PassQueue(self.recognizer, self.sent.put, lanes=LANES)
        self.passes.start()
        for number in range(1, 5):
            self.passes.open(number, DecodeOptions(), partials=True)

    def final(self, stream: int, samples: int, utterance: int = 0) -> None:
        audio = np.zeros(samples, np.float32)
        self.passes.submit_final(stream, Utterance(utterance, 0, audio, 0, samples, ""))

    def progress(self, stream: int, samples: int) -> None:
        self.passes.submit_ahead(stream, Progress(0, 0, np.zeros(samples, np.float32)))

    def lengths(self) -> list[int]:
        return sorted(length for length, _ in self.recognizer.calls)

    def wait(self, holds: Callable[[], bool]) -> None:
        limit = time.monotonic() + 30
        while not holds():
            assert time.monotonic() < limit
            time.sleep(0.001)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.recognizer.gate.clear()
    yield made
    made.recognizer.gate.set()
    made.passes.stop()


def test_passes_of_several_streams_run_at_once(bench: Bench) -> None:
    for stream in (1, 2, 3, 4):
        bench.final(stream, stream * 10)
    bench.wait(lambda: len(bench.recognizer.calls) == LANES)
    assert bench.passes.queued == 1
    bench.recognizer.gate.set()
    finals = [bench.sent.get(timeout=30) for _ in range(4)]
    assert all(isinstance(final, Final) for final in finals)
    assert {final.text for final in finals} == {f"{n}0 samples" for n in (1, 2, 3, 4)}


def test_partials_of_a_stream_stay_in_order_and_leave_a_lane_free(bench: Bench) -> None:
    bench.progress(1, 11)
    bench.wait(lambda: bench.lengths() == [11])
    bench.progress(1, 12)
    files = [bench.passes.submit_file(np.zeros(n, np.float32), DecodeOptions()) for n in (21, 22)]
    bench.wait(lambda: bench.lengths() == [11, 21])
    bench.final(2, 30)
    bench.wait(lambda: bench.lengths() == [11, 21, 30])
    bench.recognizer.gate.set()
    for file in files:
        file.result(30)
    texts = []
    while len(texts) < 2:
        message = bench.sent.get(timeout=30)
        if isinstance(message, Partial):
            texts.append(message.text)
    assert texts == ["11 samples", "12 samples"]


def test_the_end_of_an_utterance_cancels_the_partial_that_is_late(bench: Bench) -> None:
    bench.progress(1, 11)
    bench.wait(lambda: bench.lengths() == [11])
    bench.final(1, 40)
    bench.wait(lambda: bench.recognizer.cancelled == [11])
    bench.recognizer.gate.set()
    final = bench.sent.get(timeout=30)
    assert isinstance(final, Final) and final.text == "40 samples"


def test_a_pause_replaces_the_partial_that_runs(bench: Bench) -> None:
    bench.progress(1, 11)
    bench.wait(lambda: bench.lengths() == [11])
    bench.passes.submit_ahead(1, Pause(0, 0, np.zeros(15, np.float32)))
    bench.wait(lambda: bench.recognizer.cancelled == [11] and bench.lengths() == [11, 15])


def test_a_closed_stream_and_a_cancelled_file_take_no_further_step(bench: Bench) -> None:
    stopped = False
    bench.final(1, 10)
    file = bench.passes.submit_file(np.zeros(20, np.float32), DecodeOptions(), lambda: stopped)
    bench.wait(lambda: bench.lengths() == [10, 20])
    bench.passes.close(1)
    stopped = True
    bench.wait(lambda: sorted(bench.recognizer.cancelled) == [10, 20])
    assert file.exception(30) is not None
    bench.recognizer.gate.set()
    bench.final(2, 30)
    final = bench.sent.get(timeout=30)
    assert isinstance(final, Final) and final.stream == 2
