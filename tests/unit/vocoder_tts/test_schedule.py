"""Which stream's hop is next, what is dropped, and when a stream waits for its listener."""

from __future__ import annotations

import numpy as np
from antiphon_vocoder.engine.stream import SpeechStream, next_stream
from antiphon_vocoder.messages import OpenStream, SpeakClause

RATE = 1000


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
    assert next_stream([running, new], 30.0) is new


def test_a_listener_about_to_run_dry_comes_before_first_audio() -> None:
    running, new = stream(0), stream(1, ready_at=10.0)
    # A hop on busy cores may take what the listener has left.
    running.note_audio(RATE, now=9.9)
    assert 0.8 < running.slack(10.0) < 1.0
    assert next_stream([running, new], 30.0) is running


def test_streams_share_evenly_under_overload() -> None:
    streams = [stream(slot, clauses=10_000) for slot in range(8)]
    served = np.zeros(8, int)
    now = 0.0
    for _ in range(800):
        chosen = next_stream(streams, 30.0)
        assert chosen is not None
        served[chosen.opened.slot] += 1
        now += 0.1
        chosen.note_audio(int(0.4 * RATE), now)
        chosen.delivered = chosen.produced
    # The first comers get ahead by the hops that fill their listeners' reserve.
    assert served.max() - served.min() <= 4


def test_unsent_audio_beyond_the_lead_stops_a_stream() -> None:
    slow = stream(0)
    slow.note_audio(2 * RATE, now=0.0)
    assert next_stream([slow], 2.0) is None
    slow.delivered = 500
    assert next_stream([slow], 2.0) is slow


def test_a_busy_or_closed_stream_is_not_taken() -> None:
    busy, closed = stream(0), stream(1)
    busy.busy = closed.closed = True
    assert next_stream([busy, closed, SpeechStream(busy.opened, RATE)], 30.0) is None


def test_dropped_clauses_are_forgotten_and_later_ones_stay() -> None:
    spoken = stream(0, clauses=4)
    assert spoken.drop_through(1) == 2
    assert [clause.clause for clause in spoken.clauses] == [2, 3]
    assert spoken.drop_through(0) == 0


def test_idle_time_between_utterances_is_no_debt() -> None:
    talking = stream(0, ready_at=0.0)
    talking.clauses.clear()
    talking.note_audio(RATE, now=0.0)
    talking.add(
        SpeakClause(slot=0, generation=1, clause=1, phoneme_ids=[1], pause_seconds=0, first=True),
        now=100.0,
    )
    assert talking.deadline() == 100.15
    talking.note_audio(RATE, now=100.1)
    assert talking.slack(100.1) == 1.0
