"""Turns and utterances: where they begin, end and are cut."""

from __future__ import annotations

import numpy as np
import pytest
from antiphon_vocoder.recognition.messages import TurnOptions
from antiphon_vocoder.recognition.segmenter import (
    TAIL,
    Pause,
    Progress,
    SpeechStart,
    SpeechStop,
    Utterance,
)
from antiphon_vocoder.recognition.vad.detector import RATE, WINDOW
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.recognition.fakes import cut, make_segmenter, scan, tone


def comparable(events: list) -> list[tuple]:
    """Events with their audio's content, equal only where every sample is."""
    rows = []
    for event in events:
        row = [type(event).__name__, event.utterance]
        if isinstance(event, SpeechStart | SpeechStop):
            row.append(event.position)
        else:
            row += [event.start, event.audio.tobytes()]
        if isinstance(event, Utterance):
            row += [event.first, event.last, event.tag]
        rows.append(tuple(row))
    return rows


def test_a_turn_is_back_dated_at_its_start_and_ends_at_its_last_voice() -> None:
    events = scan(make_segmenter(), [tone(50, 0), tone(40), tone(30, 0)])
    start, stop = (event for event in events if isinstance(event, SpeechStart | SpeechStop))
    assert start.position == 50 * WINDOW - RATE * 300 // 1000
    assert stop.position == 90 * WINDOW
    (utterance,) = (event for event in events if isinstance(event, Utterance))
    assert (utterance.first, utterance.last) == (start.position, stop.position)
    assert utterance.start + len(utterance.audio) == stop.position + TAIL


def test_two_windows_of_noise_are_no_speech() -> None:
    assert scan(make_segmenter(), [tone(20, 0), tone(2), tone(1, 0), tone(2), tone(40, 0)]) == []


def test_the_next_turn_never_starts_before_the_last_stop() -> None:
    events = scan(
        make_segmenter(silence_ms=100, prefix_ms=5000),
        [tone(20, 0), tone(20), tone(6, 0), tone(20), tone(20, 0)],
    )
    stops = [event.position for event in events if isinstance(event, SpeechStop)]
    starts = [event.position for event in events if isinstance(event, SpeechStart)]
    assert starts == [0, stops[0]]


def test_a_pause_that_becomes_the_end_has_the_span_of_the_utterance() -> None:
    events = scan(make_segmenter(), [tone(20, 0), tone(20), tone(30, 0)])
    (pause,) = (event for event in events if isinstance(event, Pause))
    (utterance,) = (event for event in events if isinstance(event, Utterance))
    assert pause.span == utterance.span
    assert np.array_equal(pause.audio, utterance.audio)


def test_each_pause_is_reported_once_and_progress_not_within_it() -> None:
    audio = [tone(20, 0), tone(20), tone(10, 0), tone(20), tone(30, 0)]
    events = scan(make_segmenter(), audio)
    assert sum(isinstance(event, Pause) for event in events) == 2
    assert sum(isinstance(event, Utterance) for event in events) == 1
    assert all(len(event.audio) for event in events if isinstance(event, Progress))


@settings(deadline=None, max_examples=60)
@given(
    plan=st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=12),
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=8),
    silence_ms=st.sampled_from([100, 300, 500]),
    max_seconds=st.sampled_from([6.0, 30.0]),
)
def test_any_cut_of_the_audio_gives_the_same_events_and_samples(
    plan: list, lengths: list[int], silence_ms: int, max_seconds: float
) -> None:
    noise = np.random.default_rng(1).uniform(0.9, 1.1, 600_000).astype(np.float32)
    audio = np.concatenate([tone(count, 0.5 if loud else 0.01) for count, loud in plan])
    audio *= noise[: len(audio)]

    def run(pieces: list) -> list:
        segmenter = make_segmenter(silence_ms=silence_ms, max_seconds=max_seconds)
        events = scan(segmenter, pieces)
        return comparable([*events, *segmenter.finish()])

    assert run(cut(audio, lengths)) == run([audio])


@pytest.mark.parametrize("manual", [False, True])
def test_a_forced_cut_is_quiet_and_loses_no_sample(manual: bool) -> None:
    speech = tone(1250)
    speech[28 * RATE : 28 * RATE + RATE // 4] = 0.2
    segmenter = make_segmenter(manual=manual)
    events = scan(segmenter, cut(np.concatenate([speech, tone(40, 0)]), [1000]))
    events += segmenter.flush("end") if manual else []
    first, second = (event for event in events if isinstance(event, Utterance))
    assert 28 * RATE <= first.last <= 28 * RATE + RATE // 4
    assert first.last == second.first == second.start
    assert len(first.audio) + len(second.audio) == len(speech) + TAIL
    assert sum(isinstance(event, SpeechStop) for event in events) == (0 if manual else 1)


def test_history_holds_one_utterance_at_most() -> None:
    segmenter = make_segmenter()
    for piece in [tone(40, 0), tone(200)] * 40:
        scan(segmenter, [piece])
        assert segmenter.history.end - segmenter.history.start <= 31 * RATE
    assert segmenter.history.end > 300 * RATE
    scan(segmenter, [tone(200, 0)])
    assert segmenter.history.end - segmenter.history.start < RATE


def test_manual_turns_end_by_flush_only_and_carry_its_tag() -> None:
    segmenter = make_segmenter(manual=True)
    events = scan(segmenter, [tone(20, 0), tone(30), tone(60, 0), tone(30), tone(60, 0)])
    assert not any(isinstance(event, SpeechStart | SpeechStop | Utterance) for event in events)
    (utterance,) = segmenter.flush("commit-1")
    assert isinstance(utterance, Utterance)
    assert (utterance.first, utterance.last, utterance.tag) == (0, 200 * WINDOW, "commit-1")
    # The recogniser is spared the silence round the speech, but for the pre-roll and the tail.
    assert utterance.start == 20 * WINDOW - RATE * 300 // 1000
    assert utterance.start + len(utterance.audio) == 140 * WINDOW + TAIL


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("samples", [0, 1, 400, 20 * WINDOW + 7])
def test_a_flush_without_speech_gives_an_empty_utterance(manual: bool, samples: int) -> None:
    segmenter = make_segmenter(manual=manual)
    scan(segmenter, [np.zeros(samples, np.float32)])
    (utterance,) = segmenter.flush("t")
    assert isinstance(utterance, Utterance)
    assert (len(utterance.audio), utterance.last, utterance.tag) == (0, samples, "t")
    (again,) = segmenter.flush("u")
    assert isinstance(again, Utterance)
    assert (again.utterance, again.first, again.last) == (1, samples, samples)


def test_a_flush_in_the_middle_of_speech_splits_it_at_the_last_sample() -> None:
    segmenter = make_segmenter()
    scan(segmenter, [tone(20, 0), tone(20), tone(1)[:100]])
    (first,) = segmenter.flush("now")
    assert isinstance(first, Utterance)
    assert first.last == first.start + len(first.audio) == 40 * WINDOW + 100
    events = scan(segmenter, [tone(20), tone(30, 0)])
    start, *_, stop, second = events
    assert isinstance(start, SpeechStart) and isinstance(stop, SpeechStop)
    assert isinstance(second, Utterance)
    assert start.position == second.first == first.last
    assert (start.utterance, second.utterance) == (1, 1)


def test_a_reset_drops_the_utterance_and_its_audio() -> None:
    segmenter = make_segmenter()
    scan(segmenter, [tone(20, 0), tone(20)])
    segmenter.reset()
    (utterance,) = segmenter.flush("t")
    assert isinstance(utterance, Utterance) and len(utterance.audio) == 0
    assert utterance.first == 40 * WINDOW


def test_turning_detection_off_keeps_the_open_turn_for_the_flush() -> None:
    segmenter = make_segmenter()
    scan(segmenter, [tone(20, 0), tone(20)])
    assert segmenter.set_turns(TurnOptions(manual=True)) == []
    assert [type(event) for event in scan(segmenter, [tone(60, 0)])] == [Pause]
    (utterance,) = segmenter.flush("t")
    assert isinstance(utterance, Utterance)
    assert utterance.start + len(utterance.audio) == 40 * WINDOW + TAIL


def test_turning_detection_on_shows_speech_that_goes_on() -> None:
    segmenter = make_segmenter(manual=True)
    scan(segmenter, [tone(20, 0), tone(20)])
    (start,) = segmenter.set_turns(TurnOptions())
    assert isinstance(start, SpeechStart)
    events = scan(segmenter, [tone(30, 0)])
    assert [type(event) for event in events] == [Pause, SpeechStop, Utterance]


def test_turning_detection_on_keeps_what_was_said_before() -> None:
    segmenter = make_segmenter(manual=True)
    scan(segmenter, [tone(20, 0), tone(20), tone(60, 0)])
    assert segmenter.set_turns(TurnOptions()) == []
    (utterance,) = segmenter.flush("t")
    assert isinstance(utterance, Utterance)
    assert utterance.start < 20 * WINDOW and len(utterance.audio) > 20 * WINDOW


def test_the_end_of_input_ends_an_open_turn_with_its_last_sample() -> None:
    segmenter = make_segmenter()
    scan(segmenter, [tone(20, 0), tone(20), tone(1)[:300]])
    stop, utterance = segmenter.finish()
    assert isinstance(stop, SpeechStop) and isinstance(utterance, Utterance)
    assert stop.position == utterance.last == 40 * WINDOW + 300
    assert segmenter.finish() == []
