"""What was heard, what is playing, and the events that follow from it."""

from __future__ import annotations

import pytest
from antiphon_gateway.realtime import commands, inputs, session
from antiphon_gateway.realtime.events import RateLimit
from realtime_bench import Bench, kinds, message_texts, of

STARTED, STOPPED, CLEARED = (
    "output_audio_buffer.started",
    "output_audio_buffer.stopped",
    "output_audio_buffer.cleared",
)


def spoken(bench: Bench, played: float = 0.0) -> None:
    """A reply of 0.6 s in three words, all of it sent at once; then time passes."""
    bench.turn("count")
    bench.reply("One ", "two ", "three.", end=False)
    bench.play(0.6)
    bench.end()
    bench.now += played


def barge_in(bench: Bench, text: str = "stop") -> list[dict]:
    bench.append(1.2)
    sent = bench.start_speech(bench.state.buffer.end_ms - 1000)
    bench.stop_speech(bench.state.buffer.end_ms)
    bench.transcript(text)
    return sent


@pytest.mark.parametrize(
    ("played", "heard"), [(0.05, None), (0.25, "One"), (0.45, "One two"), (0.7, "One two three.")]
)
def test_a_finished_reply_that_still_plays_is_heard_by_the_clock(
    bench: Bench, played: float, heard: str | None
) -> None:
    spoken(bench, played)
    barge_in(bench)
    texts = message_texts(bench.plan)[1:]
    if heard is None:
        assert texts == [("user", "count\nstop")]
    else:
        assert texts == [("user", "count"), ("assistant", heard), ("user", "stop")]


def test_a_later_truncate_wins_and_the_wire_item_stays_as_sent(bench: Bench) -> None:
    spoken(bench, 0.45)
    barge_in(bench)
    item = of(bench.events, "response.done")[0]["response"]["output"][0]
    shown = bench.client("conversation.item.retrieve", item_id=item["id"])[0]["item"]
    assert shown["content"][0]["transcript"] == "One two three."
    place = {"content_index": 0, "audio_end_ms": 200}
    bench.client("conversation.item.truncate", item_id=item["id"], **place)
    bench.client("response.cancel")
    bench.client("response.create")
    assert message_texts(bench.plan)[2] == ("assistant", "One")


def test_without_interruption_all_counts_as_heard(bench: Bench) -> None:
    bench.update(audio={"input": {"turn_detection": {"interrupt_response": False}}})
    spoken(bench, 0.1)
    barge_in(bench)
    assert message_texts(bench.plan)[2] == ("assistant", "One two three.")


def test_a_reply_that_queues_behind_another_is_heard_after_it(bench: Bench) -> None:
    spoken(bench)
    bench.say("more")
    bench.client("response.create")
    bench.reply("Four ", "five.", end=False)
    bench.play(0.4)
    bench.end()
    bench.now += 0.85  # 0.6 s of the first reply, then 0.25 s of the second.
    barge_in(bench)
    spoken_texts = [text for role, text in message_texts(bench.plan) if role == "assistant"]
    assert spoken_texts == ["One two three.", "Four"]


def test_audio_that_waits_is_dropped_by_a_barge_in_after_the_done(bench: Bench) -> None:
    bench.turn("count")
    bench.reply("One ", "two ", "three.")
    before = len(bench.commands)
    barge_in(bench)
    assert any(isinstance(c, commands.SilenceLane) for c in bench.commands[before:])
    assert message_texts(bench.plan)[1:] == [("user", "count\nstop")]


def test_optional_events_come_to_those_who_asked(bench: Bench) -> None:
    bench.update(optional_events=["conversation.item.created", STARTED, STOPPED, CLEARED])
    spoken(bench)
    sent = kinds(bench.events)
    assert sent.count(STARTED) == 1 and STOPPED not in sent
    first = sent.index(STARTED)
    assert "response.content_part.added" in sent[:first]
    assert sent[first + 1] == "response.output_audio.delta"
    assert sent.count("conversation.item.created") == sent.count("conversation.item.added") == 2
    due = session.deadline(bench.state)
    assert due == pytest.approx(bench.now + 0.6)
    bench.now = due
    assert kinds(bench.feed(inputs.Tick())) == [STOPPED]
    spoken(bench, 0.1)
    assert CLEARED in kinds(barge_in(bench))


def test_nobody_else_gets_them(bench: Bench) -> None:
    spoken(bench, 0.1)
    barge_in(bench)
    assert not {STARTED, STOPPED, CLEARED, "conversation.item.created"} & set(kinds(bench.events))


def test_rate_limits_follow_the_created_response(bench: Bench) -> None:
    bench.say("hi")
    bench.client("response.create")
    assert bench.commands.count(commands.ReportRateLimits()) == 1
    limit = RateLimit("tokens", 1000, 900, 1.5)
    sent = bench.feed(inputs.RateLimitsKnown((limit,)))
    assert sent[0]["type"] == "rate_limits.updated"
    assert sent[0]["rate_limits"] == [
        {"name": "tokens", "limit": 1000, "remaining": 900, "reset_seconds": 1.5}
    ]


class TestIdle:
    """idle_timeout_ms."""

    @pytest.fixture
    def bench(self) -> Bench:
        made = Bench()
        made.update(audio={"input": {"turn_detection": {"idle_timeout_ms": 5000}}})
        return made

    def test_it_counts_from_the_end_of_the_playback(self, bench: Bench) -> None:
        spoken(bench)
        due = session.deadline(bench.state)
        assert due == pytest.approx(bench.now + 0.6 + 5.0)
        bench.append(6)
        bench.now = due
        sent = bench.feed(inputs.Tick())
        assert kinds(sent) == [
            "input_audio_buffer.timeout_triggered",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "conversation.item.input_audio_transcription.completed",
            "response.created",
        ]
        assert sent[0]["audio_end_ms"] - sent[0]["audio_start_ms"] == 5000
        assert sent[0]["item_id"] == sent[1]["item_id"]
        assert message_texts(bench.plan)[-1] == ("user", "(The user says nothing.)")
        assert bench.plan.response_id == sent[-1]["response"]["id"]
        bench.reply("Are you there?")
        assert session.deadline(bench.state) == pytest.approx(bench.now + 5.2), "and again"

    @pytest.mark.parametrize("what", ["speech", "response", "off"])
    def test_what_ends_the_waiting(self, bench: Bench, what: str) -> None:
        spoken(bench)
        bench.append(1)
        if what == "speech":
            bench.start_speech(bench.state.buffer.end_ms)
        elif what == "response":
            bench.client("response.create")
        else:
            bench.update(audio={"input": {"turn_detection": {"idle_timeout_ms": None}}})
        assert session.deadline(bench.state) is None
        bench.now += 60
        assert bench.feed(inputs.Tick()) == []

    def test_a_session_without_reply_is_not_spoken_to(self, bench: Bench) -> None:
        bench.append(1)
        assert session.deadline(bench.state) is None


def test_pacing_and_its_lead_travel_with_the_plan(bench: Bench) -> None:
    assert bench.update(audio_lead_ms=2000)[0]["session"]["audio_lead_ms"] == 2000
    bench.say("hi")
    bench.client("response.create")
    assert bench.plan.audio_lead == 2.0
