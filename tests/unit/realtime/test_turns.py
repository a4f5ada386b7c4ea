"""Spoken turns: order on the wire, transcripts, barge-in, manual commits, the input buffer."""

from __future__ import annotations

import pytest
from antiphon_gateway.domain.recognition import TurnMode
from antiphon_gateway.realtime import commands, inputs
from realtime_bench import FAILURE, SECOND, Bench, kinds, message_texts, of

VAD_TURN = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
    "response.created",
    "conversation.item.input_audio_transcription.delta",
    "conversation.item.input_audio_transcription.completed",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_audio_transcript.delta",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
]


def manual(bench: Bench) -> None:
    bench.update(audio={"input": {"turn_detection": None}})


def test_a_vad_turn_has_exactly_the_documented_order(bench: Bench) -> None:
    sent = bench.turn("what time is it")
    sent += bench.reply("Noon.")
    assert kinds(sent) == VAD_TURN
    user = sent[0]["item_id"]
    assert {e["item_id"] for e in sent[:3]} == {user}
    assert sent[3]["item"]["id"] == user and sent[3]["previous_item_id"] is None
    assert sent[9]["previous_item_id"] == user
    assert sent[9]["item"] == {
        "type": "message",
        "id": sent[9]["item"]["id"],
        "object": "realtime.item",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }
    assert sent[10]["part"] == {"type": "audio", "transcript": ""}
    assert sent[16]["item"]["content"] == [{"type": "output_audio", "transcript": "Noon."}]
    assert message_texts(bench.plan) == [("system", "Be brief."), ("user", "what time is it")]


def test_positions_count_from_the_first_byte_ever_appended(bench: Bench) -> None:
    bench.turn()
    bench.reply("Yes.")
    bench.append(3)
    started = bench.start_speech(at_ms=2500)
    stopped = bench.stop_speech(at_ms=4000)
    assert started[0]["audio_start_ms"] == 2500
    assert stopped[0]["audio_end_ms"] == 4000


def test_the_prompt_starts_when_the_transcript_comes_not_before(bench: Bench) -> None:
    bench.append(1.5)
    bench.start_speech(0)
    sent = bench.stop_speech(1000)
    assert kinds(sent)[-1] == "response.created"
    assert not [c for c in bench.commands if isinstance(c, commands.StartResponse)]
    bench.transcript("hi")
    assert message_texts(bench.plan)[-1] == ("user", "hi")


def test_speech_without_words_is_not_answered(bench: Bench) -> None:
    sent = bench.turn("")
    assert kinds(sent)[-1] == "response.done"
    assert sent[-1]["response"]["status"] == "cancelled"
    assert not [c for c in bench.commands if isinstance(c, commands.StartResponse)]


def test_noise_after_a_question_does_not_swallow_it(bench: Bench) -> None:
    bench.append(2)
    bench.start_speech(0)
    bench.stop_speech(900)
    bench.append(1)
    bench.start_speech(1800)
    bench.feed(inputs.Transcript(bench.state.epoch, 0, "what time is it", ""))
    bench.stop_speech(2000)
    bench.transcript("")
    assert message_texts(bench.plan)[-1] == ("user", "what time is it")


def test_create_response_false_only_commits(bench: Bench) -> None:
    bench.update(audio={"input": {"turn_detection": {"create_response": False}}})
    assert "response.created" not in kinds(bench.turn())


def test_barge_in_closes_the_reply_before_the_next_commit(bench: Bench) -> None:
    bench.turn("tell me a story")
    bench.reply("Once upon ", "a time", end=False)
    bench.append(1)
    sent = bench.start_speech(2000)
    assert kinds(sent) == [
        "input_audio_buffer.speech_started",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    done = sent[-1]["response"]
    assert done["status"] == "cancelled"
    assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert done["output"][0]["status"] == "incomplete"
    assert done["usage"]["output_tokens"] == 2
    silenced = [c for c in bench.commands if isinstance(c, commands.SilenceLane)]
    stopped = [c for c in bench.commands if isinstance(c, commands.StopResponse)]
    assert len(silenced) == len(stopped) == 1
    assert bench.commands.index(silenced[0]) < bench.commands.index(stopped[0])


def test_repeated_starts_are_harmless(bench: Bench) -> None:
    bench.append(1)
    assert kinds(bench.start_speech(0)) == ["input_audio_buffer.speech_started"]
    assert bench.start_speech(100) == []


def test_results_of_a_cancelled_reply_are_ignored(bench: Bench) -> None:
    bench.turn("hello")
    bench.reply("One", end=False)
    bench.client("response.cancel")
    assert bench.reply(" two") == []


def test_without_interruption_the_reply_goes_on_and_the_turn_waits(bench: Bench) -> None:
    bench.update(audio={"input": {"turn_detection": {"interrupt_response": False}}})
    bench.turn("first")
    bench.reply("Well", end=False)
    sent = bench.turn("second")
    assert "response.done" not in kinds(sent) and "response.created" not in kinds(sent)
    sent = bench.end()
    assert kinds(sent)[-2:] == ["response.done", "response.created"]
    assert message_texts(bench.plan)[-1] == ("user", "second")


def test_a_turn_that_interrupts_takes_the_place_of_one_that_waits(bench: Bench) -> None:
    bench.update(audio={"input": {"turn_detection": {"interrupt_response": False}}})
    bench.turn("first")
    bench.reply("Well", end=False)
    bench.turn("second")
    start = bench.state.buffer.end_ms
    bench.append(1.5)
    bench.start_speech(start)
    bench.update(audio={"input": {"turn_detection": {"interrupt_response": True}}})
    sent = bench.stop_speech(start + 1000)
    assert kinds(sent)[-2:] == ["response.done", "response.created"]
    bench.transcript("third")
    assert message_texts(bench.plan)[-1] == ("user", "first\nsecond\nthird")


def test_speech_that_interrupts_starts_no_reply_that_waited(bench: Bench) -> None:
    bench.update(audio={"input": {"turn_detection": {"interrupt_response": False}}})
    bench.turn("first")
    bench.reply("Well", end=False)
    bench.turn("second")
    bench.update(audio={"input": {"turn_detection": {"interrupt_response": True}}})
    start = bench.state.buffer.end_ms
    bench.append(1.5)
    sent = bench.start_speech(start)
    assert "response.done" in kinds(sent) and "response.created" not in kinds(sent)


def test_a_turn_may_span_several_utterances(bench: Bench) -> None:
    bench.append(40)
    bench.start_speech(0)
    bench.feed(inputs.Transcript(bench.state.epoch, 0, "the first part", ""))
    bench.feed(inputs.SpeechEnded(bench.state.epoch, 1, 39_000))
    sent = bench.feed(inputs.Transcript(bench.state.epoch, 1, "and the rest", ""))
    completed = of(sent, "conversation.item.input_audio_transcription.completed")
    assert completed[0]["transcript"] == "the first part and the rest"
    assert completed[0]["usage"] == {"type": "duration", "seconds": 39.0}


def test_a_final_that_beats_the_stop_still_completes_the_item(bench: Bench) -> None:
    bench.append(2)
    bench.start_speech(0)
    bench.transcript("early")
    bench.stop_speech(1000)
    assert message_texts(bench.plan)[-1] == ("user", "early")


def test_a_failed_recognition_fails_the_reply_and_says_so(bench: Bench) -> None:
    bench.append(2)
    bench.start_speech(0)
    bench.stop_speech(1000)
    sent = bench.feed(inputs.UtteranceFailed(bench.state.epoch, bench.utterance, FAILURE, ""))
    assert kinds(sent) == [
        "conversation.item.input_audio_transcription.failed",
        "response.done",
    ]
    assert sent[-1]["response"]["status"] == "failed"
    assert sent[-1]["response"]["status_details"]["error"]["code"] == "bad_gateway"


def test_transcripts_stay_internal_when_the_client_did_not_ask(bench: Bench) -> None:
    bench.update(audio={"input": {"transcription": None}})
    sent = bench.turn("secret")
    assert not [kind for kind in kinds(sent) if "transcription" in kind]
    item = bench.client("conversation.item.retrieve", item_id=sent[0]["item_id"])[0]["item"]
    assert item["content"][0]["transcript"] is None
    assert message_texts(bench.plan)[-1] == ("user", "secret")


def test_manual_commit_then_create(bench: Bench) -> None:
    manual(bench)
    bench.append(1)
    sent = bench.client("input_audio_buffer.commit")
    assert kinds(sent) == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    item_id = sent[0]["item_id"]
    assert bench.commands[-1] == commands.FlushRecognizer(item_id)
    assert kinds(bench.client("response.create")) == ["response.created"]
    bench.transcript("by hand", tag=item_id)
    assert message_texts(bench.plan)[-1] == ("user", "by hand")


@pytest.mark.parametrize("seconds", [0, 0.09])
def test_an_empty_commit_is_refused(bench: Bench, seconds: float) -> None:
    manual(bench)
    bench.append(seconds)
    sent = bench.client("input_audio_buffer.commit", event_id="mine")
    assert sent[0]["error"]["code"] == "input_audio_buffer_commit_empty"
    assert sent[0]["error"]["event_id"] == "mine"


def test_clear_leaves_no_turn_state(bench: Bench) -> None:
    bench.append(1)
    bench.start_speech(0)
    epoch = bench.state.epoch
    assert kinds(bench.client("input_audio_buffer.clear")) == ["input_audio_buffer.cleared"]
    assert bench.state.turn is None and len(bench.state.buffer) == 0
    assert bench.feed(inputs.SpeechEnded(epoch, bench.utterance, 900)) == []
    assert bench.feed(inputs.SpeechBegan(epoch, 7, 0)) == []


def test_a_mode_change_mid_turn_keeps_the_buffer_and_ends_the_turn_silently(bench: Bench) -> None:
    bench.append(1)
    bench.start_speech(0)
    manual(bench)
    assert bench.state.turn is None
    assert len(bench.state.buffer) == SECOND
    opened = [c for c in bench.commands if isinstance(c, commands.OpenRecognizer)][-1]
    assert len(opened.replay) == SECOND
    assert kinds(bench.client("input_audio_buffer.commit"))[0] == "input_audio_buffer.committed"


def test_semantic_vad_leaves_the_end_of_turns_to_the_recogniser(bench: Bench) -> None:
    bench.append(0.1)
    for eagerness, asked in (("low", "low"), ("auto", "medium"), ("high", "high")):
        detection = {"type": "semantic_vad", "eagerness": eagerness}
        bench.update(audio={"input": {"turn_detection": detection}}, speculative_ms=200)
        tuned = bench.commands[-1]
        assert isinstance(tuned, commands.TuneRecognizer)
        assert tuned.detection.mode is TurnMode.SEMANTIC
        assert tuned.detection.eagerness == asked
        assert tuned.detection.silence_ms is None and tuned.detection.threshold is None


@pytest.mark.parametrize(
    ("forced", "label"), [(False, "semantic_vad"), (True, "semantic_vad_longest_silence")]
)
def test_who_ended_a_semantic_turn_is_counted(bench: Bench, forced: bool, label: str) -> None:
    bench.update(audio={"input": {"turn_detection": {"type": "semantic_vad"}}})
    bench.append(1.5)
    bench.start_speech(0)
    ended = inputs.SpeechEnded(bench.state.epoch, bench.utterance, 1000, forced)
    assert kinds(bench.feed(ended))[0] == "input_audio_buffer.speech_stopped"
    assert commands.CountTurn(label) in bench.commands


def test_a_broken_recogniser_is_reopened_and_what_waited_is_heard_again(bench: Bench) -> None:
    bench.append(2)
    bench.start_speech(0)
    item_id = bench.stop_speech(1000)[0]["item_id"]
    bench.feed(inputs.RecognizerFailed(bench.state.epoch, FAILURE))
    asked = [c for c in bench.commands if isinstance(c, commands.TranscribeItem)]
    assert [c.item_id for c in asked] == [item_id] and len(asked[0].audio) == SECOND
    assert isinstance(bench.commands[-2], commands.OpenRecognizer)
    bench.feed(inputs.ItemTranscribed(item_id, "second hearing"))
    assert message_texts(bench.plan)[-1] == ("user", "second hearing")


def test_a_recogniser_that_never_works_ends_the_session(bench: Bench) -> None:
    bench.append(1)
    for _ in range(5):
        sent = bench.feed(inputs.RecognizerFailed(bench.state.epoch, FAILURE))
    assert kinds(sent) == ["error"]
    assert bench.commands[-1] == commands.Close(1011, "speech recognition is not available")


def test_an_idle_recogniser_is_opened_again_by_the_next_audio(bench: Bench) -> None:
    bench.append(1)
    for _ in range(9):
        bench.feed(inputs.RecognizerFailed(bench.state.epoch, FAILURE, idle=True))
        assert not bench.state.recognizer_open
        bench.append(0.02)
        assert isinstance(bench.commands[-1], commands.OpenRecognizer)


@pytest.mark.parametrize("crosses", [True, False], ids=["it crosses the commit", "before"])
def test_a_commit_to_an_idle_recogniser_is_transcribed(bench: Bench, crosses: bool) -> None:
    manual(bench)
    bench.append(1)
    ended = inputs.RecognizerFailed(bench.state.epoch, FAILURE, idle=True)
    if not crosses:
        bench.feed(ended)
    bench.client("input_audio_buffer.commit")
    item_id = bench.state.conversation.last_id
    bench.client("response.create")
    if crosses:
        bench.feed(ended)
        asked = bench.commands[-1]
        assert isinstance(asked, commands.TranscribeItem) and len(asked.audio) == SECOND
        bench.feed(inputs.ItemTranscribed(asked.item_id, "good morning"))
    else:
        first, second = [c for c in bench.commands if isinstance(c, commands.OpenRecognizer)]
        assert (first.epoch, second.epoch) == (ended.epoch, bench.state.epoch)
        assert len(second.replay) == SECOND
        bench.transcript("good morning", tag=item_id)
    assert message_texts(bench.plan)[-1] == ("user", "good morning")


def test_text_sessions_never_open_a_recogniser(bench: Bench) -> None:
    bench.say("hello")
    bench.client("response.create")
    bench.reply("hi")
    assert not [c for c in bench.commands if isinstance(c, commands.OpenRecognizer)]


def test_ten_minutes_without_a_commit_are_committed(bench: Bench) -> None:
    manual(bench)
    sent = []
    for _ in range(10):
        sent += bench.append(60)
    assert "input_audio_buffer.committed" in kinds(sent)


def test_quiet_audio_does_not_pile_up(bench: Bench) -> None:
    for _ in range(600):
        bench.append(1)
    assert len(bench.state.buffer) <= 12 * SECOND
    assert bench.state.buffer.received == 600 * SECOND
