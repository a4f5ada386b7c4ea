"""The recogniser's queue: what is sent, in which order, and what is recognised only once."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator

import numpy as np
import pytest
from antiphon_vocoder.recognition.messages import (
    DecodeOptions,
    Final,
    Partial,
    StreamFailed,
    UtteranceFailed,
)
from antiphon_vocoder.recognition.passes import PassQueue
from antiphon_vocoder.recognition.segmenter import Pause, Progress, Utterance
from antiphon_vocoder.recognition.whisper.transcript import Effort

from tests.unit.recognition.fakes import SpanRecognizer


def utterance(number: int, samples: int, start: int = 0, tag: str = "") -> Utterance:
    audio = np.zeros(samples, np.float32)
    return Utterance(number, start, audio, start, start + samples, tag)


def pause(number: int, samples: int, start: int = 0) -> Pause:
    return Pause(number, start, np.zeros(samples, np.float32))


class Bench:
    """A queue with a fake recogniser and one open stream, 7."""

    def __init__(self, *, partials: bool = True) -> None:
        self.recognizer = SpanRecognizer()
        self.sent: queue.Queue[object] = queue.Queue()
        self.passes = PassQueue(self.recognizer, self.sent.put)
        self.passes.start()
        self.passes.open(7, DecodeOptions(), partials=partials)

    def next(self) -> object:
        return self.sent.get(timeout=30)

    def wait_calls(self, count: int) -> None:
        limit = time.monotonic() + 30
        while len(self.recognizer.calls) < count:
            assert time.monotonic() < limit
            time.sleep(0.001)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.recognizer.gate.set()
    made.passes.stop()


def test_a_pause_that_is_the_end_is_recognised_once_and_answers_at_once(bench: Bench) -> None:
    bench.passes.submit_ahead(7, pause(0, 100))
    assert isinstance(bench.next(), Partial)
    bench.recognizer.gate.clear()
    bench.passes.submit_final(7, utterance(0, 100))
    final = bench.next()
    assert isinstance(final, Final) and final.text == "100 samples"
    assert bench.recognizer.calls == [(100, Effort.AHEAD)]
    assert bench.passes.totals.speculative_hits == 1


def test_a_final_waits_for_the_pass_ahead_that_runs(bench: Bench) -> None:
    bench.recognizer.gate.clear()
    bench.passes.submit_ahead(7, pause(0, 100))
    bench.wait_calls(1)
    bench.passes.submit_final(7, utterance(0, 100))
    bench.recognizer.gate.set()
    assert isinstance(bench.next(), Final)
    assert len(bench.recognizer.calls) == 1


def test_speech_after_a_pause_is_recognised_anew(bench: Bench) -> None:
    bench.passes.submit_ahead(7, pause(0, 100))
    assert isinstance(bench.next(), Partial)
    bench.passes.submit_final(7, utterance(0, 300))
    final = bench.next()
    assert isinstance(final, Final) and final.text == "300 samples"
    assert bench.recognizer.calls == [(100, Effort.AHEAD), (300, Effort.FULL)]


def test_no_partial_follows_its_final(bench: Bench) -> None:
    bench.recognizer.gate.clear()
    bench.passes.submit_ahead(7, Progress(0, 0, np.zeros(50, np.float32)))
    bench.wait_calls(1)
    bench.passes.submit_final(7, utterance(0, 100))
    bench.passes.submit_ahead(7, Progress(1, 100, np.zeros(60, np.float32)))
    bench.recognizer.gate.set()
    assert isinstance(bench.next(), Final)
    partial = bench.next()
    assert isinstance(partial, Partial) and partial.utterance == 1


def test_finals_come_in_order_before_other_work_and_before_the_last_message(bench: Bench) -> None:
    bench.passes.open(8, DecodeOptions(), partials=True)
    bench.recognizer.gate.clear()
    bench.passes.submit_final(7, utterance(0, 10))
    bench.wait_calls(1)
    bench.passes.submit_ahead(8, Progress(0, 0, np.zeros(55, np.float32)))
    bench.passes.submit_ahead(8, pause(0, 66))
    bench.passes.submit_final(7, utterance(1, 20, tag="a"))
    bench.passes.submit_final(7, utterance(2, 0))
    bench.passes.finish(7, "finished")
    bench.recognizer.gate.set()
    answers = [bench.next() for _ in range(4)]
    assert [getattr(item, "utterance", item) for item in answers] == [0, 1, 2, "finished"]
    assert isinstance(bench.next(), Partial)
    assert [call[0] for call in bench.recognizer.calls] == [10, 20, 66]


def test_a_failed_utterance_is_reported_and_the_next_one_works(bench: Bench) -> None:
    bench.recognizer.error = RuntimeError("broken")
    bench.passes.submit_final(7, utterance(0, 10, tag="t"))
    failed = bench.next()
    assert isinstance(failed, UtteranceFailed) and failed.tag_text == "t"
    bench.recognizer.error = None
    bench.passes.submit_final(7, utterance(1, 10))
    assert isinstance(bench.next(), Final)


def test_out_of_memory_ends_the_stream(bench: Bench) -> None:
    bench.recognizer.error = MemoryError()
    bench.passes.submit_final(7, utterance(0, 10))
    failed = bench.next()
    assert isinstance(failed, StreamFailed) and failed.failure.reason == "MEMORY_PRESSURE"
    bench.passes.submit_final(7, utterance(1, 10))
    assert bench.passes.backlog(7) == 0


def test_a_closed_stream_is_silent(bench: Bench) -> None:
    bench.recognizer.gate.clear()
    bench.passes.submit_final(7, utterance(0, 10))
    bench.wait_calls(1)
    bench.passes.submit_final(7, utterance(1, 20))
    bench.passes.close(7)
    bench.passes.open(9, DecodeOptions(), partials=False)
    bench.passes.submit_final(9, utterance(0, 30))
    bench.recognizer.gate.set()
    final = bench.next()
    assert isinstance(final, Final) and final.stream == 9
    assert [call[0] for call in bench.recognizer.calls] == [10, 30]


def test_a_dropped_utterance_has_no_partial(bench: Bench) -> None:
    bench.recognizer.gate.clear()
    bench.passes.submit_ahead(7, pause(0, 10))
    bench.wait_calls(1)
    bench.passes.drop_open(7, 1)
    bench.recognizer.gate.set()
    bench.passes.submit_final(7, utterance(1, 20, start=40))
    final = bench.next()
    assert isinstance(final, Final) and final.utterance == 1


def test_files_and_partials_share_what_finals_leave(bench: Bench) -> None:
    bench.recognizer.gate.clear()
    bench.passes.submit_final(7, utterance(0, 1))
    bench.wait_calls(1)
    results = [bench.passes.submit_file(np.zeros(n, np.float32), DecodeOptions()) for n in (2, 3)]
    bench.passes.submit_ahead(7, Progress(1, 1, np.zeros(4, np.float32)))
    bench.recognizer.gate.set()
    assert [result.result(5).text for result in results] == ["2 samples", "3 samples"]
    assert sorted(call[0] for call in bench.recognizer.calls) == [1, 2, 3, 4]
    assert [call[0] for call in bench.recognizer.calls].index(4) < 3


def test_a_defect_of_the_thread_is_not_silent(bench: Bench) -> None:
    bench.passes._send = None  # type: ignore[assignment]
    bench.passes.submit_ahead(7, pause(0, 10))
    bench.passes._threads[0].join(5)
    with pytest.raises(TypeError):
        bench.passes.raise_failure()
