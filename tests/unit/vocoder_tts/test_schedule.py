"""Which stream's hop is next, what is dropped, and when a stream waits for its listener."""

from __future__ import annotations

import numpy as np
import pytest
from antiphon_vocoder.engine.stream import Hop, SpeechStream, next_stream
from antiphon_vocoder.messages import OpenStream, SpeakClause
from antiphon_vocoder.tts.piper import Latent

RATE = 1000
NOW = 10.0


def stream(slot: int, *, ready_at: float = 0.0, clauses: int = 1) -> SpeechStream:
    opened = OpenStream(slot=slot, generation=1, voice="v", speed=1.0, noiseless=True)
    made = SpeechStream(opened, RATE)
    for index in range(clauses):
        clause = SpeakClause(
            slot=slot, generation=1, clause=index, phoneme_ids=[1], pause_seconds=0.0, first=False
        )
        made.add(clause, ready_at)
    return made


def test_first_audio_comes_before_a_listener_with_slack() -> None:
    running, new = stream(0), stream(1, ready_at=10.0)
    running.note_audio(5 * RATE, now=9.0)
    assert next_stream([running, new], 30.0, NOW) is new


def test_a_listener_about_to_run_dry_comes_before_first_audio() -> None:
    running, new = stream(0), stream(1, ready_at=10.0)
    # A hop on busy cores may take what the listener has left.
    running.note_audio(RATE, now=9.9)
    assert 0.8 < running.slack(10.0) < 1.0
    assert next_stream([running, new], 30.0, NOW) is running


def test_a_listener_whose_next_clause_is_not_encoded_has_two_hops_to_wait_for() -> None:
    new, encoded_next, decoded_next = stream(2, ready_at=NOW), stream(0), heard(stream(1), 1.5)
    encoded_next.note_audio(int(1.5 * RATE), now=NOW)
    assert next_stream([new, encoded_next, decoded_next], 30.0, NOW) is encoded_next
    assert next_stream([new, decoded_next], 30.0, NOW) is new


def test_those_who_waited_long_do_not_all_come_before_a_listener_about_to_run_dry() -> None:
    running, late = heard(stream(0), 0.4), stream(1, ready_at=NOW - 5.0)
    assert next_stream([running, late], 30.0, NOW) is late
    encoded(late)
    assert next_stream([running, late], 30.0, NOW) is running


def test_streams_share_evenly_under_overload() -> None:
    streams = [stream(slot, clauses=10_000) for slot in range(8)]
    served = np.zeros(8, int)
    now = 0.0
    for _ in range(800):
        chosen = next_stream(streams, 30.0, NOW)
        assert chosen is not None
        served[chosen.opened.slot] += 1
        now += 0.1
        chosen.note_audio(int(0.4 * RATE), now)
        chosen.delivered = chosen.produced
    # The first comers get ahead by the hops that fill their listeners' reserve of 2 s.
    assert served.max() - served.min() <= 5


def test_unsent_audio_beyond_the_lead_stops_a_stream() -> None:
    slow = stream(0)
    slow.note_audio(2 * RATE, now=0.0)
    assert next_stream([slow], 2.0, NOW) is None
    slow.delivered = 500
    assert next_stream([slow], 2.0, NOW) is slow


def test_a_busy_or_closed_stream_is_not_taken() -> None:
    busy, closed = stream(0), stream(1)
    busy.running, closed.closed = 1, True
    assert next_stream([busy, closed, SpeechStream(busy.opened, RATE)], 30.0, NOW) is None


def test_dropped_clauses_are_forgotten_and_later_ones_stay() -> None:
    spoken = stream(0, clauses=4)
    assert spoken.drop_through(1) == 2
    assert [clause.clause for clause in spoken.clauses] == [2, 3]
    assert spoken.drop_through(0) == 0


def test_idle_time_between_utterances_is_no_debt() -> None:
    talking = stream(0, ready_at=0.0)
    talking.take(NOW)
    talking.begun.clear()
    talking.note_audio(RATE, now=0.0)
    talking.add(
        SpeakClause(slot=0, generation=1, clause=1, phoneme_ids=[1], pause_seconds=0, first=True),
        now=100.0,
    )
    assert talking.deadline() == 100.15
    talking.note_audio(RATE, now=100.1)
    assert talking.slack(100.1) == 1.0


def encoded(one: SpeechStream, frames: int = 3000) -> Hop:
    """Takes the next encoding and ends it; a frame is a sample, so this gives three windows."""
    hop = one.take(NOW)
    assert hop.window is None
    hop.progress.begin(Latent(frames, ()), RATE, 1, 0.0)
    one.running -= 1
    return hop


def heard(one: SpeechStream, seconds: float = 1.0) -> SpeechStream:
    """With so much audio for its listener at ``NOW``."""
    encoded(one)
    one.note_audio(int(seconds * RATE), now=NOW)
    return one


def test_a_stream_runs_ahead_where_no_other_needs_the_core() -> None:
    alone = heard(stream(0))
    first = alone.take(NOW)
    assert next_stream([alone], 30.0, NOW) is alone
    second = alone.take(NOW)
    assert first.window is not second.window
    assert next_stream([alone], 30.0, NOW) is None


@pytest.mark.parametrize("seconds", [0.0, 0.35])
def test_a_hop_that_is_waited_for_has_its_core_alone(seconds: float) -> None:
    new = heard(stream(0), seconds)
    new.take(NOW)
    assert next_stream([new], 30.0, NOW) is None


def test_a_newcomer_comes_before_one_that_would_run_ahead() -> None:
    talking, new = heard(stream(0)), stream(1, ready_at=1e9)
    talking.take(NOW)
    assert talking.deadline() < new.deadline()
    assert next_stream([talking, new], 30.0, NOW) is new


def test_the_next_clause_is_encoded_while_the_last_window_runs() -> None:
    talking = heard(stream(0, clauses=2))
    windows = [talking.take(NOW) for _ in range(3)]
    talking.running = 1
    ahead = talking.take(NOW)
    assert ahead.window is None
    assert ahead.progress.clause.clause == 1
    assert all(hop.progress.clause.clause == 0 for hop in windows)


def test_windows_leave_in_order_whichever_ends_first() -> None:
    talking = heard(stream(0, clauses=2))
    hops = [talking.take(NOW) for _ in range(3)]
    second = encoded(talking)
    hops += [talking.take(NOW) for _ in range(3)]
    left = []
    for place in (1, 4, 0, 3, 2, 5):
        window = hops[place].window
        assert window is not None
        window.decoded = np.zeros(1, np.float32)
        left.append([done for _, done in talking.decoded()])
    windows = [hop.window for hop in hops]
    assert left == [[], [], windows[:2], [], windows[2:5], windows[5:]]
    assert second.progress not in talking.begun


def test_what_runs_of_a_dropped_clause_is_forgotten() -> None:
    talking = heard(stream(0, clauses=3))
    running = talking.take(NOW)
    assert talking.drop_through(1) == 2 + 1
    assert talking.is_dropped(running.progress.clause)
    assert talking.take(NOW).progress.clause.clause == 2
