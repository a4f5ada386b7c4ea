"""Judged turns: a refused pause is the same turn, and events follow from the audio alone."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from antiphon_vocoder.recognition.detection import Detection
from antiphon_vocoder.recognition.messages import (
    Audio,
    DecodeOptions,
    EndInput,
    Final,
    OpenStream,
    Start,
    Started,
    Stopped,
    StreamFailed,
    StreamFinished,
    StreamOptions,
    StreamReady,
    TurnOptions,
)
from antiphon_vocoder.recognition.passes import PassQueue
from antiphon_vocoder.recognition.segmenter import (
    Candidate,
    Pause,
    Segmenter,
    SegmentEvent,
    SpeechStart,
    SpeechStop,
    Utterance,
)
from antiphon_vocoder.recognition.speakers.model import SpeakerModel
from antiphon_vocoder.recognition.turns.trial import Court
from antiphon_vocoder.recognition.vad import DetectorSet
from antiphon_vocoder.recognition.vad.detector import RATE, WINDOW, DetectorState
from antiphon_vocoder.recognition.vad.energy import EnergyDetector
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.unit.recognition.fakes import LevelDetector, SpanRecognizer, cut, tone
from tests.unit.recognition.piper_speech import pcm16

JUDGED = TurnOptions(judged=True, silence_ms=200, longest_silence_ms=2000)


def judged_scan(
    pieces: list[NDArray[np.float32]], answers: list[float], turns: TurnOptions = JUDGED
) -> list[SegmentEvent]:
    """Scores pieces window by window; each candidate takes the next answer."""
    segmenter = Segmenter(
        turns, max_samples=30 * RATE, pause_samples=160 * RATE // 1000, interval_samples=None
    )
    detector = LevelDetector()
    left = iter(answers)
    events: list[SegmentEvent] = []
    for piece in pieces:
        segmenter.append(piece)
        while (window := segmenter.next_window()) is not None:
            score = detector.score(window[None], [DetectorState()])[0]
            new = segmenter.scored(float(score))
            events += new
            if any(isinstance(event, Candidate) for event in new):
                events += segmenter.judged(next(left))
    return events


def kinds(events: list[SegmentEvent], *wanted: type) -> list[type]:
    return [type(event) for event in events if isinstance(event, wanted)]


def test_a_refused_pause_is_the_same_turn_and_the_same_utterance() -> None:
    audio = [tone(20, 0), tone(20), tone(30, 0), tone(20), tone(30, 0)]
    events = judged_scan(audio, [0.1, 0.9])
    assert kinds(events, SpeechStart, SpeechStop, Utterance, Candidate) == [
        SpeechStart,
        Candidate,
        Candidate,
        SpeechStop,
        Utterance,
    ]
    stop = next(event for event in events if isinstance(event, SpeechStop))
    assert stop.position == 90 * WINDOW
    assert (stop.end_probability, stop.forced) == (0.9, False)


def test_an_accepted_pause_ends_the_turn_at_its_last_voice_with_the_audio_that_was_judged() -> None:
    events = judged_scan([tone(20, 0), tone(20), tone(8, 0)], [0.5])
    candidate = next(event for event in events if isinstance(event, Candidate))
    utterance = next(event for event in events if isinstance(event, Utterance))
    pause = next(event for event in events if isinstance(event, Pause))
    assert candidate.span == utterance.span == pause.span
    assert utterance.last == 40 * WINDOW


def test_the_longest_silence_ends_a_refused_pause_which_is_judged_once() -> None:
    events = judged_scan([tone(20, 0), tone(20), tone(62, 0)], [0.0])
    assert not kinds(events, SpeechStop)
    events = judged_scan([tone(20, 0), tone(20), tone(63, 0)], [0.0])
    (stop,) = (event for event in events if isinstance(event, SpeechStop))
    assert (stop.position, stop.end_probability, stop.forced) == (40 * WINDOW, 0.0, True)


def test_a_refusal_that_is_less_sure_costs_less_silence() -> None:
    """Half the threshold waits half of what is between the pause and the longest silence."""
    waits = round((200 + 1800 / 2) / 32 + 0.5)
    audio = [tone(20, 0), tone(20)]
    assert not kinds(judged_scan([*audio, tone(waits - 1, 0)], [0.25]), SpeechStop)
    assert kinds(judged_scan([*audio, tone(waits, 0)], [0.25]), SpeechStop)
    # The next pause of the same turn is judged anew.
    again = [*audio, tone(10, 0), tone(20), tone(62, 0)]
    assert not kinds(judged_scan(again, [0.45, 0.0]), SpeechStop)


def test_turns_that_nobody_judges_end_as_before() -> None:
    plain = TurnOptions(silence_ms=200, longest_silence_ms=2000)
    events = judged_scan([tone(20, 0), tone(20), tone(8, 0)], [], plain)
    (stop,) = (event for event in events if isinstance(event, SpeechStop))
    assert stop.end_probability is None


class SpanJudge:
    """Answers by the length of what it hears; can be held back or made to fail."""

    name = "span"

    def __init__(self, *, needs_text: bool = False) -> None:
        self.needs_text = needs_text
        self.texts: list[str | None] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def probability(self, audio: NDArray[np.float32], text: str | None, language: str) -> float:
        assert self.gate.wait(10)
        self.texts.append(text)
        if self.error is not None:
            raise self.error
        return len(audio) // WINDOW % 2


@dataclass(frozen=True)
class Said:
    """What was said about a stream, by kind and in order; delays left out."""

    turns: list[Started | Stopped]
    finals: list[tuple[int, str, int, int]]
    """(utterance, text, start_ms, end_ms)"""

    @property
    def stops(self) -> list[Stopped]:
        return [event for event in self.turns if isinstance(event, Stopped)]


class Bench:
    """A detection with a real queue of passes and a real court."""

    def __init__(self, judge: SpanJudge, *, speculative_ms: int = 160) -> None:
        self.sent: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.messages: list[object] = []
        self.passes = PassQueue(SpanRecognizer(), self.sent.put)
        self.court = Court(judge, self.passes)
        start = Start("", "int8", "cpu", "auto", 1, 1, 1, speculative_ms, 500, 30.0, 60.0, "")
        self.detection = Detection(
            start, DetectorSet(), self.court, self.sent.put, SpeakerModel(None)
        )
        self.passes.start()

    def open(self, number: int, turns: TurnOptions) -> None:
        options = StreamOptions("pcm16", RATE, turns, DecodeOptions(), False, True)
        self.detection.open(OpenStream(number, options))

    def feed(self, number: int, pieces: list[NDArray[np.float32]]) -> None:
        for piece in pieces:
            self.detection.command(Audio(number, pcm16(piece)))

    def rounds(self, until: type, number: int, seconds: float = 30.0) -> None:
        """Works until a message of this kind about the stream was sent."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.detection.round():
                time.sleep(0.002)
            while not self.sent.empty():
                self.messages.append(self.sent.get())
            if any(isinstance(m, until) and _stream(m) == number for m in self.messages):
                return
        raise AssertionError(f"no {until.__name__} of stream {number}")

    def close(self) -> None:
        self.court.stop()
        self.passes.stop()

    def of(self, number: int) -> Said:
        """What was said about a stream; a final comes behind its stop, whenever its pass is done:
        turn events do not wait for recognition."""
        said = Said([], [])
        for message in self.messages:
            if isinstance(message, Started | Stopped) and message.stream == number:
                said.turns.append(message)
            elif isinstance(message, Final) and message.stream == number:
                assert message.utterance in [stop.utterance for stop in said.stops]
                said.finals.append(
                    (message.utterance, message.text, message.start_ms, message.end_ms)
                )
        return said


def _stream(message: object) -> int:
    return getattr(message, "stream", -1)


ENERGY = TurnOptions(judged=True, silence_ms=200, longest_silence_ms=1000, detector="energy")
TALK = [tone(20, 0), tone(21), tone(10, 0), tone(20), tone(12, 0), tone(18), tone(50, 0), tone(9)]


def run_whole(lengths: list[int], judge: SpanJudge) -> Said:
    bench = Bench(judge)
    try:
        bench.open(1, ENERGY)
        bench.feed(1, cut(np.concatenate(TALK), lengths))
        bench.detection.command(EndInput(1))
        bench.rounds(StreamFinished, 1)
        return bench.of(1)
    finally:
        bench.close()


@settings(deadline=None, max_examples=6)
@given(lengths=st.lists(st.integers(64, 20_000), min_size=1, max_size=6), text=st.booleans())
@example(lengths=[1, 20_000, 1, 511], text=True)
def test_events_do_not_depend_on_how_the_audio_is_cut(lengths: list[int], text: bool) -> None:
    whole = run_whole([1 << 30], SpanJudge())
    assert whole.stops and [final[0] for final in whole.finals] == [
        stop.utterance for stop in whole.stops
    ]
    assert run_whole(lengths, SpanJudge(needs_text=text)) == whole


def test_a_slow_judge_delays_its_own_stream_only_and_changes_none_of_its_events() -> None:
    judge = SpanJudge()
    bench = Bench(judge)
    try:
        judge.gate.clear()
        for number in (1, 2):
            bench.open(number, ENERGY if number == 1 else TurnOptions(detector="energy"))
            bench.feed(number, TALK)
            bench.detection.command(EndInput(number))
        bench.rounds(StreamFinished, 2)
        assert [type(event) for event in bench.of(1).turns] == [Started]
        judge.gate.set()
        bench.rounds(StreamFinished, 1)
        assert bench.of(1) == run_whole([1 << 30], SpanJudge())
    finally:
        judge.gate.set()
        bench.close()


def test_a_judge_that_fails_leaves_the_longest_silence_to_end_the_turn() -> None:
    judge = SpanJudge()
    judge.error = RuntimeError("no model")
    (stop,) = (one for one in run_whole([WINDOW], judge).stops if one.utterance == 0)
    assert stop.forced


def test_a_detector_that_fails_on_one_stream_ends_that_stream_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    score = EnergyDetector.score

    def fails_near_full_scale(
        self: EnergyDetector, windows: NDArray[np.float32], states: Sequence[DetectorState]
    ) -> NDArray[np.float32]:
        if np.abs(windows).max() > 0.9:
            raise RuntimeError("scripted")
        return score(self, windows, states)

    monkeypatch.setattr(EnergyDetector, "score", fails_near_full_scale)
    bench = Bench(SpanJudge())
    try:
        for number, audio in ((1, TALK), (2, [*TALK[:2], tone(4, 0.95)])):
            bench.open(number, ENERGY)
            bench.feed(number, audio)
            bench.detection.command(EndInput(number))
        bench.rounds(StreamFailed, 2)
        bench.rounds(StreamFinished, 1)
        (failed,) = (m for m in bench.messages if isinstance(m, StreamFailed))
        assert (failed.stream, failed.failure.code) == (2, "INTERNAL")
        assert bench.of(1) == run_whole([1 << 30], SpanJudge())
        assert bench.detection.stream_count == 0
    finally:
        bench.close()


def test_a_judge_that_wants_text_has_it_with_and_without_passes_ahead() -> None:
    for speculative_ms in (160, 0):
        judge = SpanJudge(needs_text=True)
        bench = Bench(judge, speculative_ms=speculative_ms)
        bench.open(1, ENERGY)
        bench.feed(1, [tone(20, 0), tone(20), tone(10, 0)])
        bench.detection.command(EndInput(1))
        bench.rounds(StreamFinished, 1)
        bench.close()
        assert judge.texts and judge.texts[0] is not None and "samples" in judge.texts[0]
        assert bench.court.totals.unheard == 0


def test_the_stream_names_its_judge() -> None:
    bench = Bench(SpanJudge())
    bench.open(1, ENERGY)
    ready = bench.sent.get()
    bench.close()
    assert isinstance(ready, StreamReady) and ready.turn_judge == "span"
